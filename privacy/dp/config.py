"""[dp]: differential privacy. Without the table there is none."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hansa.tables import Table
from privacy.dp.mechanism import Unit

Whole = Annotated[int, Field(ge=1, le=1 << 40)]


class AdaptiveTable(Table):
    """[dp.adaptive]: the clip of whole updates follows a quantile of their norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5  # of the sites' norms, where the clip shall be
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.2  # of the clip's logarithm, a round
    bit_noise: Annotated[float, Field(gt=0, le=1e9)] | None = None  # std on the count of sites; None: sites / 20


class DpTable(Table):
    """[dp]: who is protected, how well, and how far one unit may pull."""

    unit: Annotated[Unit, Field(description='"record", "group" or "site" (who is protected)')]
    epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None  # of the whole run, at each site; this, or
    noise_multiplier: Annotated[float, Field(ge=1e-2, le=1e9)] | None = None  # noise over clip
    delta: Annotated[
        float, Field(gt=0, lt=1, description="a number above 0 and below 1, well below 1 / (rows of a site)")
    ]
    clip: Annotated[
        float,
        Field(ge=1e-10, le=1e30, description="a number of at least 1e-10 (the L2 norm up to which one unit counts)"),
    ]
    group_column: Annotated[str, Field(min_length=1)] | None = None  # whose value names the group of a row
    acknowledge_repeats: bool = False  # unit = "record" although one value of group_column has several rows
    weights: Annotated[
        Literal["uniform"] | Mapping[str, Whole],
        Field(description='"uniform" or a table of whole numbers above 0 by site such as { basel = 303 }'),
    ] = "uniform"  # of sites in the mean; public, whatever they have
    adaptive: AdaptiveTable | None = None

    @property
    def most_weight(self) -> int:
        """The largest public weight of a site."""
        return 1 if self.weights == "uniform" else max(self.weights.values())

    @model_validator(mode="after")
    def _one_promise(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            both = "are both missing; set one" if self.epsilon is None else "are both set; keep one"
            raise ValueError(f"epsilon and noise_multiplier {both}: the other follows from it")
        if self.unit == "group" and self.group_column is None:
            raise ValueError('unit = "group" needs group_column, whose value names the group of a row; add it')
        if self.unit == "site" and self.group_column is not None:
            raise ValueError('group_column has no effect with unit = "site", which protects all rows; remove it')
        if self.unit != "record" and self.acknowledge_repeats:
            raise ValueError(f'acknowledge_repeats has no effect with unit = "{self.unit}"; remove it')
        if self.unit != "site" and self.adaptive is not None:
            raise ValueError(f'adaptive is for unit = "site", not "{self.unit}"; remove it')
        if not self.weights:
            raise ValueError('weights is an empty table; give a number for each site, or "uniform"')
        return self

    def hyper(self, rounds: int) -> dict[str, Any]:
        """What of it rides in every plan of a run of so many rounds, as `plan.hyper["dp"]`."""
        return {**self.model_dump(mode="json", exclude_none=True), "rounds": rounds}

    def check(self, config: Mapping[str, Any]) -> Iterable[str]:
        """What does not go with it in the other tables."""
        if self.unit == "group" and (data := config.get("data")) is not None and data.split.by != self.group_column:
            by = "nothing" if data.split.by is None else repr(data.split.by)
            yield f"[dp] group_column: [data] split groups the rows by {by}; set by = {self.group_column!r} there"
        if (rounds := config.get("rounds")) is not None:
            hidden = "under [dp] no metric of a site's rows leaves it"
            if rounds.patience is not None:
                yield f"[rounds] patience: {hidden}, so nothing tells when to stop; remove it"
            if rounds.keep == "best":
                yield f'[rounds] keep: {hidden}, so nothing tells which model is best; set keep = "last"'
        if self.unit != "site" and (training := config.get("training")) is not None:
            if training.clip_norm is not None:
                yield f"[training] clip_norm: [dp] clip = {self.clip:g} bounds each {self.unit}'s gradient; remove it"
            if training.precision != "float32":
                yield '[training] precision: under [dp] gradients are those of float32; set "float32"'
            if training.drop_last:
                yield "[training] drop_last: under [dp] batches are drawn by chance, and none is left out; remove it"
