"""A run under secure aggregation at the server: whether it can be, what a round bears, what a sum says."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import Aggregate, Plan
from privacy.config import FROM, PrivacyTable
from privacy.fixed_point import from_fixed
from privacy.secagg.terms import threshold
from privacy.secagg.total import Total
from privacy.secure import COUNTERS, Secure
from server.config import RoundsTable, count
from strategies.base import Strategy

TOLD = 0.01  # share of values clipped, or of the weights, from which it is a warning


def secure_of(
    table: PrivacyTable, rounds: RoundsTable, strategy: Strategy, layout: Layout, sites: int
) -> Secure | None:
    """How a run is summed; None: without secure aggregation.

    Args:
        table: [privacy].
        rounds: [rounds].
        strategy: the algorithm.
        layout: of the shared model.
        sites: of the federation.

    Raises:
        UserError: secure aggregation is wanted and cannot be, a line a problem.
    """
    if not table.wants(sites):
        return None
    parts = strategy.parts(layout.size, layout.n_parameters)
    asked = count(rounds.sites_per_round, sites)
    if problems := list(_problems(table, rounds, strategy, sites, min(asked, sites))):
        raise UserError(*problems)
    return Secure(table, parts, layout.n_counters)


def _problems(table: PrivacyTable, rounds: RoundsTable, strategy: Strategy, sites: int, asked: int) -> Iterator[str]:
    if strategy.needs == "each":
        yield (
            f"[strategy] {type(strategy).__name__}: it must see each site's update, and under secure aggregation the "
            "server learns their sum only; choose another, or set [privacy] secure = false"
        )
    if sites < 2:
        yield "[privacy] secure: the sum over one site is that site's update; set secure = false"
    elif asked < min(FROM, sites):
        yield (
            f"[rounds] sites_per_round: {asked} of {sites} sites, and a sum over fewer than {min(FROM, sites)} hides "
            "too little; raise it"
        )
    elif table.threshold is not None and not threshold(asked) <= table.threshold <= asked:
        yield (
            f"[privacy] threshold = {table.threshold}: {asked} sites are asked, and a sum needs the answers of more "
            f"than two thirds; give {_range(threshold(asked), asked)}"
        )
    elif (quorum := count(rounds.quorum, asked)) < (least := max(table.threshold or 0, threshold(asked))):
        yield (
            f"[rounds] quorum: {quorum} of {asked} sites, and no sum over fewer than {least} is opened; "
            f"set quorum = {least} or more"
        )


def bears(secure: Secure, rounds: RoundsTable, sites: int) -> str:
    """How many of the sites asked may drop out of a round, in a line."""
    asked = min(count(rounds.sites_per_round, sites), sites)
    least, quorum = secure.threshold(asked), min(count(rounds.quorum, asked), asked)
    line = f"secure aggregation: {asked} sites, threshold {least}"
    if asked == 2:
        return f"{line}: each learns the other's update, by subtraction; three or more are needed to hide it"
    if least == asked:
        return f"{line}: a round bears no dropout; four or more sites are recommended"
    if quorum > least:
        would = f"[rounds] quorum = {least} would let it bear {asked - least}"
        return f"{line}: a round bears {_dropouts(asked - quorum)}; {would}"
    return f"{line}: a round bears {_dropouts(asked - least)}"


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
        warnings=(*sorted(warnings), *(line for share, line in _lossy(total) if share > TOLD)),
        notes=tuple(line for share, line in _lossy(total) if 0 < share <= TOLD),
    )


def too_few(there: int, asked: int, least: int) -> str:
    """Why no sum is opened."""
    return f"{there} of {asked} sites took part, and no sum over fewer than {least} is opened"


def unopened(plan: Plan, why: str, dropped: Mapping[str, str], warnings: Iterable[str] = ()) -> Aggregate:
    """A round of which no sum was opened: the server has learnt nothing of it."""
    said = [] if plan.kind == "train" else [f"the {plan.split} rows do not count: {why}"]
    return Aggregate({}, None, {}, 0, 0.0, (), dict(sorted(dropped.items())), {}, (*sorted(warnings), *said), void=why)


def _lossy(total: Total) -> Iterator[tuple[float, str]]:
    """What the whole numbers have cost: a share, and a line on it. Small errors of weights are left out."""
    for part, share in total.clipped.items():
        yield share, f"{share:.2%} of the values of {part!r} were beyond its [privacy] clip"
    error, weighs = total.weight_error, any(part.weight == "examples" for part in total.terms.parts)
    if weighs and abs(error) > TOLD:
        heavy = (
            f"{total.heavy} of {len(total.sites)} sites have more rows than [privacy] max_weight = {total.terms.rows}"
        )
        why = heavy if total.heavy else "weights are rounded up to 255ths of [privacy] max_weight"
        yield abs(error), f"[privacy] max_weight: the sites' weights are {error:+.1%} off their rows in all: {why}"


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _dropouts(number: int) -> str:
    return "no dropout" if not number else "1 dropout" if number == 1 else f"{number} dropouts"
