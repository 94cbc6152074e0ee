"""[rounds]: how many rounds, which sites, when a round counts, which model is kept."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hansa.tables import Table

Some = Annotated[
    Annotated[int, Field(ge=1, strict=True)] | Annotated[float, Field(gt=0, le=1)],
    Field(description="a number of sites (1, 2, ...) or a share of them (above 0.0, up to 1.0)"),
]


class RoundsTable(Table):
    """[rounds]: the course of a run."""

    rounds: Annotated[int, Field(ge=1)] = 10
    sites_per_round: Some = 1.0  # asked in each round: a number of sites, or a share of all, drawn with the run's seed
    quorum: Some = 1.0  # answers that make a round count: a number of sites, or a share of those asked
    deadline: Annotated[float, Field(gt=0)] = 3600.0  # seconds from plan to answer, deployed; then the quorum rules
    max_void: Annotated[int, Field(ge=0)] = 3  # rounds in a row that may not count before the run fails
    keep: Literal["last", "best"] = "last"  # the model that is scored on test data and handed out
    monitor: str = "loss"  # the validation metric that tells the best model
    patience: Annotated[int, Field(ge=1)] | None = None  # rounds without a better model after which the run stops early

    @model_validator(mode="after")
    def _quorum_within_reach(self) -> Self:
        if (
            isinstance(self.quorum, int)
            and isinstance(self.sites_per_round, int)
            and self.quorum > self.sites_per_round
        ):
            raise ValueError(f"quorum = {self.quorum} cannot be reached with sites_per_round = {self.sites_per_round}")
        return self

    @property
    def chooses(self) -> bool:
        """Whether the run needs validation data: to keep the best model or to stop early."""
        return self.keep == "best" or self.patience is not None

    @property
    def upwards(self) -> bool:
        """Whether more of the monitored metric is better."""
        return self.monitor in ("accuracy", "auc", "f1", "r2", "c_index")


def count(some: int | float, of: int) -> int:
    """A number of sites from a number or a share, at least one: shares are rounded up."""
    return some if isinstance(some, int) else max(1, -int(-some * of // 1))
