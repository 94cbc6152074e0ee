"""[training] of a site.toml: how the site's processes share the work. Imports no torch: the light process reads it."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hansa.tables import Table

Degree = Annotated[int, Field(ge=1)]
LOOPBACK = "127.0.0.1"  # where ranks of one machine meet


class Degrees(Table):
    """Degrees of parallelism; their product is the number of processes."""

    dp: Degree = 1  # data parallel: each has the whole model, and its own rows
    shard: Degree = 1  # FSDP2: each has a part of every tensor, and its own rows
    tp: Degree = 1  # tensor parallel: each computes a part of every layer, on the same rows

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.dp > 1 and self.tp > 1:
            raise ValueError(f"dp and tp do not go together; write shard = {self.dp} in place of dp")
        if self.dp > 1 and self.shard > 1:
            raise ValueError(f"dp and shard do not go together; write shard = {self.dp * self.shard} and leave dp out")
        return self

    @property
    def procs(self) -> int:
        """How many processes that takes."""
        return self.dp * self.shard * self.tp

    @property
    def cuts(self) -> int:
        """Into how many parts a batch is cut."""
        return self.dp * self.shard

    def over(self, procs: int) -> Self:
        """The like over another number of processes; `tp` stays, since the layers are cut for it.

        Raises:
            ValueError: they cannot be shared out so.
        """
        if procs % self.tp:
            raise ValueError(f"tp = {self.tp} cannot be kept over {procs} processes")
        degree = "shard" if self.shard > 1 or self.tp > 1 else "dp"
        return type(self)(**{"tp": self.tp, degree: procs // self.tp})

    @property
    def whole(self) -> bool:
        """Whether each process has the whole model."""
        return self.shard == self.tp == 1


def _auto(value: object) -> object:
    if isinstance(value, str) and value != "auto":
        raise ValueError('must be "auto", or degrees, e.g. { shard = 4 }')
    return None if value == "auto" else value


Chosen = Annotated[Degrees | None, BeforeValidator(_auto)]


class ParallelKeys(Table):
    """Keys of [training] for more than one process, and for what saves memory."""

    parallel: Chosen = None  # "auto": dp where the model fits, else shard
    activation_checkpointing: bool = False  # compute a block's inside again on the way back: less memory, more time
    compile: bool = False  # torch.compile, block by block
    precision: Literal["float64", "float32", "bfloat16"] | None = None  # in place of federation.toml's
    accumulation: Annotated[int, Field(ge=1)] = 1  # parts in which a process takes its rows of a batch, one by one

    @property
    def plain(self) -> bool:
        """Whether one process needs nothing of this package: no key but `parallel` is set."""
        return not self.model_fields_set & (ParallelKeys.model_fields.keys() - {"parallel"})

    def degrees(self, procs: int) -> Degrees | None:
        """The degrees that are named; None: "auto".

        Raises:
            ValueError: they are for another number of processes.
        """
        if self.parallel is None:
            return None
        if self.parallel.procs != procs:
            named = " x ".join(f"{name} {degree}" for name, degree in self.parallel.model_dump().items() if degree > 1)
            mend = f'set procs = {self.parallel.procs}, or parallel = "auto"'
            raise ValueError(f"parallel: {named or 'dp 1'} is for {self.parallel.procs}, and procs = {procs}; {mend}")
        return self.parallel
