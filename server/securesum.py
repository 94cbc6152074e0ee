"""What the server learns from a round under secure aggregation: what a sum says, or why there is none."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from hansa.records import Aggregate, Plan
from privacy.fixed_point import from_fixed
from privacy.secagg.total import Total
from privacy.secure import COUNTERS

TOLD = 0.01  # share of a part's values clipped, beyond which it is a warning; error of weights, beyond which it is told


def aggregate_of(
    total: Total,
    shapes: Mapping[str, tuple[int, ...]],
    sites: int,
    dropped: Mapping[str, str],
    memory: Mapping[str, str],
    warnings: Iterable[str] = (),
) -> Aggregate:
    """What a sum says.

    Of integer buffers the largest cannot be told: their mean is rounded up.

    Args:
        total: the sum.
        shapes: of the metric sums.
        sites: of the federation.
        dropped: sites that are not in the sum, and why.
        memory: version staged, by site.
        warnings: what else is to be told.

    Raises:
        Refused: it is beyond what sites can have sent.
    """
    there, terms, sums = len(total.sites), total.terms, dict(total.sums)
    mean = {part.name: torch.from_numpy(total.mean(part.name)) for part in terms.parts}
    counters = None
    if terms.parts:
        summed = torch.from_numpy(sums.pop(COUNTERS).copy()) if COUNTERS in sums else torch.zeros(0, dtype=torch.int64)
        counters = -(-summed // there)
    return Aggregate(
        mean=mean,
        counters=counters,
        sums={name: from_fixed(torch.from_numpy(sums[name].copy())).view(shapes[name]) for name in sorted(sums)},
        examples=total.rows,
        share=there / sites,
        sites=total.sites,
        dropped=dict(sorted(dropped.items())),
        memory={site: memory[site] for site in total.sites if site in memory},
        warnings=(*sorted(warnings), *(line for share, line in _clipped(total) if share > TOLD)),
        notes=(*(line for share, line in _clipped(total) if 0 < share <= TOLD), *_weighed(total)),
    )


def of_few(name: str, sites: int, least: int) -> str:
    """Why a metric is not summed: the zeros of those that have it not hide nothing."""
    return f"metric {name!r} is of {sites} of the sites only, and no sum over fewer than {least} is opened; left out"


def too_few(there: int, asked: int, least: int) -> str:
    """Why no sum is opened."""
    return f"{there} of {asked} sites took part, and no sum over fewer than {least} is opened"


def unopened(plan: Plan, why: str, dropped: Mapping[str, str], warnings: Iterable[str] = ()) -> Aggregate:
    """A round of which no sum was opened: the server has learnt nothing of it."""
    said = [] if plan.kind == "train" else [f"the {plan.split} rows do not count: {why}"]
    return Aggregate({}, None, {}, 0, 0.0, (), dict(sorted(dropped.items())), {}, (*sorted(warnings), *said), void=why)


def _clipped(total: Total) -> Iterator[tuple[float, str]]:
    for part, share in total.clipped.items():
        yield share, f"{share:.2%} of the values of {part!r} were beyond its [privacy] clip"


def _weighed(total: Total) -> Iterator[str]:
    error, weighs = total.weight_error, any(part.weight == "examples" for part in total.terms.parts)
    if weighs and abs(error) > TOLD:
        heavy = f"{total.heavy} of {len(total.sites)} sites have more rows than that"
        why = heavy if total.heavy else "they are rounded up to 255ths of it"
        yield f"[privacy] max_weight: the sites' weights are {error:+.1%} off their rows in all: {why}"
