"""What goes between the server and the sites. P = shared floats, C = counters (see `hansa.layout`).

Light: a site's process that holds its session has use for some of these, and imports no torch.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hansa.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Vectors = Mapping[str, "Tensor"]  # by name: [P], or [n_parameters] for what concerns parameters only


@dataclass(frozen=True)
class ServerState:
    """All that a strategy's server half knows."""

    params: "Tensor"  # [P] float32
    counters: "Tensor"  # [C] int64
    shared: Vectors = field(default_factory=dict)  # what sites get beside the model (SCAFFOLD's c)
    own: Vectors = field(default_factory=dict)  # what stays at the server (the moments of an optimiser)


@dataclass(frozen=True)
class Broadcast:
    """What every site gets at the start of a round."""

    params: "Tensor"  # [P] float32
    counters: "Tensor"  # [C] int64
    shared: Vectors = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The order of one round. A site that `memory` does not name starts afresh."""

    run: str
    seed: int
    round: int  # from 1
    kind: Literal["train", "evaluate"]
    split: Literal["valid", "test"]  # the rows that the incoming model is scored on
    broadcast: Broadcast
    hyper: Mapping[str, Any]  # learning rate and the like, of this round
    memory: Mapping[str, str] = field(default_factory=dict)  # site -> version of the memory that it starts from

    @cached_property
    def version(self) -> str:
        """The version under which a site stages its memory in this round."""
        return f"{self.round:06d}-{digest(self.broadcast.params)[:16]}"


@dataclass(frozen=True)
class LocalRun:
    """What local training did."""

    delta: "Tensor"  # [P] float32, trained minus anchor
    counters: "Tensor"  # [C] int64
    steps: int  # optimizer steps, those that the loss scaler skipped left out
    lr_sum: float  # how far a constant gradient of 1 would have moved a parameter: the sum of lr, more under momentum
    examples: int  # rows of training data: the site's weight
    sums: Vectors = field(default_factory=dict)  # metric sums of training
    told: Mapping[str, float] = field(default_factory=dict)  # what a strategy's local_update tells its finish
    n_parameters: int = field(kw_only=True)  # N: of delta, the rest are buffers, which follow no gradient


@dataclass(frozen=True)
class Part:
    """One vector of an upload, as the strategy declares it: the server takes nothing else, at no other weight."""

    size: int  # floats
    weight: Literal["examples", "uniform"]  # in the mean over sites
    each: bool = False  # no mean: `Strategy.step` gets every site's, [sites, size]

    def __post_init__(self) -> None:
        if self.size < 0 or self.weight not in ("examples", "uniform"):
            mend = 'give Part a number of floats, and "examples" or "uniform"'
            raise UserError(f"[strategy]: a part of {self.size} floats with weight {self.weight!r}; {mend}")


Upload = Mapping[str, "Tensor"]  # by part name: float32 vectors


@dataclass(frozen=True)
class Reply:
    """A site's answer to a plan: in a train plan its upload; metric sums in both kinds."""

    site: str
    examples: int
    upload: Upload = field(default_factory=dict)
    counters: "Tensor | None" = None  # [C] int64
    sums: Vectors = field(default_factory=dict)  # metric sums, float64
    memory: str | None = None  # the version of the memory that it staged


@dataclass(frozen=True)
class Refusal:
    """A site that takes no part in a round, with its reason (one line that is fit to print)."""

    site: str
    reason: str
    late: bool = False  # it gave no answer, where others say that they have nothing to give


@dataclass(frozen=True)
class Aggregate:
    """What the server learns from a round: sums and means over the sites that took part.

    Never one site's, but for parts that a strategy must see one by one.
    """

    mean: Vectors  # by part, [size]; [sites, size] where the part has `each`
    counters: "Tensor | None"
    sums: Vectors  # metric sums
    examples: int
    share: float  # sites that took part / all sites of the federation
    sites: tuple[str, ...]  # that took part, sorted
    dropped: Mapping[str, str]  # site -> reason
    memory: Mapping[str, str]  # site -> version staged, of those that took part
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # less than warnings
    void: str | None = None  # why the round does not count


def digest(vector: "Tensor") -> str:
    """SHA-256 of a CPU vector's bytes."""
    array = vector.detach().contiguous().numpy()
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
