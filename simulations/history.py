"""What a simulation leaves: the chosen model and all that was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd
from torch import nn

from hansa.metrics import Sums
from hansa.records import ServerState
from hansa.workbench import Workbench
from privacy.dp.statement import Statement


@dataclass(frozen=True)
class History:
    """A run's results."""

    run: str
    state: ServerState = field(repr=False)  # of the chosen model
    round: int  # after which the chosen model stood
    early: bool  # stopped by [rounds] patience
    bench: Workbench = field(repr=False)
    test: dict[str, Sums] = field(repr=False)  # site -> metric sums on its test rows
    table: pd.DataFrame = field(repr=False)
    privacy: Mapping[str, Statement] = field(default_factory=dict, repr=False)  # by site, or of "all"; under [dp] only
    engine: str = "loop"  # that computed it; runs that are compared have the same

    def frame(self) -> pd.DataFrame:
        """All metrics: columns round, split, scope ("all" or a site), name, value.

        `round` is the round after which the scored model stood; 0 is the initial model.
        """
        return self.table.copy()

    def curve(self, name: str, split: str = "valid", scope: str = "all") -> "pd.Series[float]":
        """One metric over the rounds, e.g. `history.curve("accuracy")`."""
        return curve_of(self.table, name, split, scope)

    def model(self) -> nn.Module:
        """The chosen shared model, in evaluation mode."""
        return self.bench.load(self.state.params, self.state.counters, {}).eval()


def curve_of(table: pd.DataFrame, name: str, split: str = "valid", scope: str = "all") -> "pd.Series[float]":
    """One metric over the rounds, from the metrics of a run."""
    one = table.query("name == @name and split == @split and scope == @scope")
    return one.set_index("round")["value"].sort_index()
