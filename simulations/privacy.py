"""What a simulated run under differential privacy promises: what the ledgers of deployed sites would say of it."""

from collections.abc import Mapping

from clients.config import TrainingTable
from hansa.errors import UserError
from privacy.dp.config import DpTable
from privacy.dp.cost import rounded_up
from privacy.dp.mechanism import Event
from privacy.dp.statement import Statement
from privacy.dp.terms import DpTerms, mechanism_for
from server.events import ALL
from server.promise import of_sites
from server.sitelevel import SiteLevel
from simulations.stragglers import Stragglers

Counted = Mapping[str, int | None]  # rows, and groups (see `SiteHalf.counted`)


def statements(
    dp: DpTable, training: TrainingTable, rounds: int, sites: Mapping[str, Counted], level: SiteLevel | None
) -> dict[str, Statement]:
    """A statement for each site that has training rows; one for all where the unit is the site.

    Args:
        dp: [dp].
        training: [training].
        rounds: of the run, in all of which a site is taken to have part.
        sites: what they have.
        level: the noise of the sums, where the unit is the site.

    Raises:
        UserError: [dp] does not fit a site's rows.
    """
    if level is not None:
        return {ALL: of_sites(dp, level)}
    from privacy.dp.accounting import epsilon  # a second to import, for runs that need it

    terms, found = DpTerms.of(dp.hyper(rounds)), {}
    for site, has in sites.items():
        if not has["rows"]:
            continue
        try:
            one = mechanism_for(terms, training.hyper(1), has["rows"], has["groups"])
        except UserError as error:
            raise UserError(*(f"site {site!r}: {line}" for line in error.problems)) from None
        event = Event(one.noise_multiplier, one.sample_rate, one.steps * rounds)
        cost, repeats = epsilon([event], dp.delta), dp.acknowledge_repeats
        found[site] = Statement(terms.unit, cost, (event,), terms.group_column, one, repeats)
    return found


def told(found: Mapping[str, Statement]) -> list[str]:
    """The statement of the site that is protected least; and how the sites differ."""
    if not found:
        return []
    site, worst = max(found.items(), key=lambda one: one[1].cost.epsilon)
    lines = list(worst.lines)
    if len(found) > 1:
        costs = sorted(one.cost.epsilon for one in found.values())
        least, most = rounded_up(costs[0]), rounded_up(costs[-1])
        spread = f"of {len(found)} sites {site} is protected least; epsilon from {least} to {most}"
        lines.insert(2, spread if least != most else f"so at each of the {len(found)} sites")
    return [*lines, "not covered: noise and coins come from the run's seed, and who knows it can take them away again"]


def check_stragglers(dp: DpTable | None, stragglers: Stragglers | None) -> None:
    """Raises UserError where noise is solved for work that a site would not do."""
    if dp is not None and stragglers is not None and dp.epsilon is not None and dp.unit != "site":
        raise UserError(
            "[dp] epsilon: the noise is solved for all of a round's work, and [simulation.stragglers] lets sites do a "
            "part of it; set noise_multiplier in its place, or remove stragglers"
        )
