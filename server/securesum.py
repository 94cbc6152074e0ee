"""What the server learns from a round under secure aggregation: what a sum says, or why there is none."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from hansa.records import Aggregate, Plan
from privacy.dp.terms import HYPER
from privacy.fixed_point import from_fixed
from privacy.secagg.total import Total
from privacy.secure import COUNTERS, Secure

TOLD = 0.01  # share of a part's values clipped, beyond which it is a warning; error of weights, beyond which it is told


def aggregate_of(
    total: Total,
    plan: Plan,
    secure: Secure,
    shapes: Mapping[str, tuple[int, ...]],
    sites: int,
    dropped: Mapping[str, str],
    warnings: Iterable[str] = (),
    least: int = 1,
) -> Aggregate:
    """What a sum says. Where too few gave something it says nothing that counts.

    Of integer buffers the largest cannot be told: their mean is rounded up. That a site gave nothing is not told of
    it, so all start from this round next, and one that gave nothing from what it had.

    Args:
        total: the sum.
        plan: that was answered.
        secure: how it was summed.
        shapes: of the metric sums.
        sites: of the federation.
        dropped: sites that are not in the sum, and why.
        warnings: what else is to be told.
        least: sites that must have given something, at least the threshold.

    Raises:
        Refused: it is beyond what sites can have sent.
    """
    there, terms, sums = total.present, total.terms, dict(total.sums)
    if there < (least := max(least, terms.threshold)):
        return unopened(plan, few_gave(total, least) + _hint(plan), dropped, warnings)
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
        memory=dict.fromkeys(total.sites, plan.version) if plan.kind == "train" and secure.remembers else {},
        warnings=(*sorted(warnings), *_absent(total, plan), *(line for share, line in _clipped(total) if share > TOLD)),
        notes=(*(line for share, line in _clipped(total) if 0 < share <= TOLD), *_weighed(total)),
    )


def of_few(name: str, sites: int, least: int) -> str:
    """Why a metric is not summed: the zeros of those that have it not hide nothing."""
    return f"metric {name!r} is of {sites} of the sites only, and no sum over fewer than {least} is opened; left out"


def too_few(there: int, asked: int, least: int) -> str:
    """Why no sum is opened."""
    return f"{there} of {asked} sites took part, and no sum over fewer than {least} is opened"


def few_gave(total: Total, least: int) -> str:
    """Why a sum does not count."""
    there = f"{total.present} of {len(total.sites)} sites gave something, which ones is not known"
    return f"{there}, and no sum over fewer than {least} counts"


def unopened(plan: Plan, why: str, dropped: Mapping[str, str], warnings: Iterable[str] = ()) -> Aggregate:
    """A round of which no sum was opened, or none that counts."""
    said = [] if plan.kind == "train" else [f"the {plan.split} rows do not count: {why}"]
    return Aggregate({}, None, {}, 0, 0.0, (), dict(sorted(dropped.items())), {}, (*sorted(warnings), *said), void=why)


def _absent(total: Total, plan: Plan) -> Iterator[str]:
    if total.absent:
        there = f"{total.absent} of {len(total.sites)} sites gave nothing, which ones is not known"
        yield f"{there}; their logs say why{_hint(plan)}"


def _hint(plan: Plan) -> str:
    """What is the usual reason under differential privacy."""
    return "; a [budget] that is spent may be it: ask sites for `hansa budget show`" if HYPER in plan.hyper else ""


def _clipped(total: Total) -> Iterator[tuple[float, str]]:
    for part, share in total.clipped.items():
        yield share, f"{share:.2%} of the values of {part!r} were beyond its [privacy] clip"


def _weighed(total: Total) -> Iterator[str]:
    weighs = any(part.weight == "examples" for part in total.terms.parts)
    if weighs and abs(error := total.weight_error) > TOLD:
        heavy = f"{total.heavy} of {total.present} sites have more rows than that"
        why = heavy if total.heavy else "they are rounded up to 255ths of it"
        yield f"[privacy] max_weight: the sites' weights are {error:+.1%} off their rows in all: {why}"
