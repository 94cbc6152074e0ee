"""Whether a run can go under secure aggregation, and how many dropouts a round bears. Knows no torch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hansa.config import Config
from hansa.errors import UserError
from privacy.config import FROM, PrivacyTable
from privacy.secagg.terms import threshold
from privacy.secure import Secure
from server.config import RoundsTable, count

if TYPE_CHECKING:
    from hansa.layout import Layout
    from strategies.base import Strategy

STAGING = ("local_update", "finish")  # a strategy's hooks that give back a memory


def secure_of(
    table: PrivacyTable, rounds: RoundsTable, strategy: "Strategy", layout: "Layout | None", sites: int
) -> Secure | None:
    """How a run is summed; None: without secure aggregation.

    Args:
        table: [privacy].
        rounds: [rounds].
        strategy: the algorithm.
        layout: of the shared model; None: it is not known yet, and the sizes do not matter.
        sites: of the federation.

    Raises:
        UserError: secure aggregation is wanted and cannot be, a line a problem.
    """
    if not table.wants(sites):
        return None
    if problems := list(_problems(table, rounds, strategy, sites)):
        raise UserError(*problems)
    size, n_parameters, counters = (layout.size, layout.n_parameters, layout.n_counters) if layout else (1, 1, 0)
    secure = Secure(table, strategy.parts(size, n_parameters), counters, remembers(strategy))
    secure.check(asked_of(rounds, sites))
    return secure


def check_privacy(config: Config, sites: int) -> None:
    """Raises UserError if an app cannot be run under secure aggregation, where it would be; loads no task."""
    rounds = config.table("rounds", RoundsTable)
    secure_of(privacy_of(config), rounds, config["strategy"], None, sites)


def privacy_of(config: Config) -> PrivacyTable:
    """[privacy], as it is beside the file's [dp]."""
    return config.table("privacy", PrivacyTable).under(config.get("dp"))


def announced(table: PrivacyTable, rounds: RoundsTable, sites: int) -> str:
    """Whether the server learns sums only, and how many of the sites asked may drop out of a round, in a line."""
    if not table.wants(sites):
        why = "[privacy] secure = false" if table.secure is False else f"of itself it is on from {FROM} sites"
        return f"no secure aggregation ({why}): the server sees each site's update"
    asked = asked_of(rounds, sites)
    least, quorum = table.least(asked), count(rounds.quorum, asked)
    line = f"secure aggregation: {asked} sites, threshold {least}"
    if asked == 2:
        return f"{line}: each learns the other's update, by subtraction; three or more are needed to hide it"
    if least == asked:
        return f"{line}: a round bears no dropout; four or more sites are recommended"
    if quorum > least:
        would = f"[rounds] quorum = {least} would let it bear {asked - least}"
        return f"{line}: a round bears {_dropouts(asked - quorum)}; {would}"
    return f"{line}: a round bears {_dropouts(asked - least)}"


def remembers(strategy: "Strategy") -> bool:
    """Whether sites may start a round from what they staged in one before: tensors of their own, or a hook's memory."""
    from strategies.base import Strategy

    own = type(strategy)
    overrides = any(getattr(own, hook) is not getattr(Strategy, hook) for hook in STAGING)
    return bool(strategy.local) or (overrides and not own.stateless)


def asked_of(rounds: RoundsTable, sites: int) -> int:
    """How many sites are asked in a round."""
    return min(count(rounds.sites_per_round, sites), sites)


def _problems(table: PrivacyTable, rounds: RoundsTable, strategy: "Strategy", sites: int) -> Iterator[str]:
    asked, few = asked_of(rounds, sites), min(FROM, sites)
    if strategy.needs == "each":
        yield (
            f"[strategy] {type(strategy).__name__}: it must see each site's update, and under secure aggregation the "
            "server learns their sum only; choose another, or set [privacy] secure = false"
        )
    if sites < 2:
        yield "[privacy] secure: the sum over one site is that site's update; set secure = false"
    elif asked < few:
        yield f"[rounds] sites_per_round: {asked} of {sites}; a sum over fewer than {few} hides too little; raise it"
    elif asked < sites and remembers(strategy):
        yield (
            f"[rounds] sites_per_round: {asked} of {sites}; {type(strategy).__name__} keeps memory at the sites, and "
            "under secure aggregation all of them go through the same rounds; ask all, or take another strategy"
        )
    elif table.threshold is not None and not threshold(asked) <= table.threshold <= asked:
        yield (
            f"[privacy] threshold = {table.threshold}: a sum needs the answers of more than two thirds of the {asked} "
            f"sites asked; give {_range(threshold(asked), asked)}"
        )
    elif (quorum := count(rounds.quorum, asked)) < (least := table.least(asked)):
        yield f"[rounds] quorum: {quorum} of {asked}, and no sum over fewer than {least} is opened; raise it to that"


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _dropouts(number: int) -> str:
    return "no dropout" if not number else "1 dropout" if number == 1 else f"{number} dropouts"
