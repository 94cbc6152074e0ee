"""[simulation.ray]: where Ray's actors are, and what each of them takes."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from hansa.tables import Table


class RayTable(Table):
    """[simulation.ray], for engine = "ray"; `[simulation] workers` is the number of actors."""

    # "ray://head:10001", or "auto" on a machine of the cluster; None: a Ray of the run's own, on this machine
    address: Annotated[str, Field(min_length=1)] | None = None
    cpus: Annotated[float, Field(gt=0)] | None = None  # cores an actor takes; None: as many as threads
    gpus: Annotated[float, Field(ge=0)] = 0.0  # GPUs an actor takes; four actors of 0.25 share one

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError("gpus: Ray gives a part of one GPU or a whole number of them; write e.g. 0.5 or 2")
        return self
