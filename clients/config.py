"""[training]: what a site does with a train plan."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hansa.tables import Table


class TrainingTable(Table):
    """[training]: the local work of one round and its optimiser."""

    epochs: Annotated[int, Field(ge=1)] | None = None  # passes over the site's rows a round; this or steps
    steps: Annotated[int, Field(ge=1)] | None = None  # batches a round; this or epochs
    batch_size: Annotated[int, Field(ge=1)] = 32  # rows
    drop_last: bool = False  # leave out an epoch's last batch when it is smaller
    num_workers: Annotated[int, Field(ge=0)] = 0  # processes that load rows; 0: none
    optimizer: str = "sgd"  # sgd, adam, adamw, or a name that Task.optimizer knows
    lr: Annotated[float, Field(gt=0, le=1e30)] = 0.01
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # factor a round
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # sgd only
    weight_decay: Annotated[float, Field(ge=0, le=1e30)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None  # L2 norm of a batch's gradient
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of the forward pass (autocast)

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps are both set; keep one of them")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f'momentum has no effect with optimizer = "{self.optimizer}"; remove it or use "sgd"')
        return self

    def hyper(self, round: int) -> dict[str, Any]:
        """The hyper-parameters of a round (from 1), as they go into its plan."""
        work: dict[str, int] = {"steps": self.steps} if self.steps else {"epochs": self.epochs or 1}
        same = self.model_dump(exclude={"epochs", "steps", "lr_decay", "num_workers"})
        return same | work | {"lr": self.lr * self.lr_decay ** (round - 1)}
