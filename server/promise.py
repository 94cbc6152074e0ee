"""What a deployed run under differential privacy promises. The sites' own ledgers rule; this is the server's report."""

from typing import Any

from privacy.dp.config import DpTable
from privacy.dp.statement import HONEST, Statement, uncovered
from server.sitelevel import SiteLevel


def promised(dp: DpTable, rounds: int, level: SiteLevel | None) -> tuple[list[str], dict[str, Any]]:
    """The report's lines, and what of it is for a file.

    Args:
        dp: [dp].
        rounds: of the run.
        level: the noise of the sums, where the unit is the site.
    """
    if level is not None:
        one = of_sites(dp, level)
        return [*one.lines, f"all this {HONEST}"], {"all": one.to_dict()}
    what = f"epsilon = {dp.epsilon:g}" if dp.epsilon is not None else f"noise multiplier = {dp.noise_multiplier:g}"
    whose = dp.unit if dp.group_column is None or dp.unit == "record" else f"{dp.unit} by {dp.group_column}"
    lines = [
        f"differential privacy (unit: {whose}): {what}, delta = {dp.delta:g}, for {rounds} rounds at each site",
        "each site draws, clips and adds noise by itself, and enters what it lets out into its own ledger: "
        "`hansa budget show` says there what it comes to",
    ]
    lines += [f"not covered: {line}" for line in uncovered(dp.unit, dp.acknowledge_repeats)]
    if dp.epsilon is not None:
        lines.insert(1, "a site lets no more out than that; less, where it took part in fewer rounds")
    said = {"unit": dp.unit, "epsilon": dp.epsilon, "noise_multiplier": dp.noise_multiplier, "delta": dp.delta}
    return lines, {"each": {**said, "group_column": dp.group_column, "clip": dp.clip, "rounds": rounds, "said": lines}}


def of_sites(dp: DpTable, level: SiteLevel) -> Statement:
    """What is stated of a run that protects whole sites."""
    from privacy.dp.accounting import epsilon  # a second to import, for runs that need it

    return Statement("site", epsilon([level.event], dp.delta), (level.event,), drawn=level.draws)
