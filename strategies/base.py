"""The interface of a federated algorithm: both halves of it in one object, state in and state out.

P = shared floats, N = those of parameters, which come first in a vector.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hansa.errors import UserError
from hansa.records import Broadcast, LocalRun, Part, ServerState, Upload, Vectors
from hansa.tables import Table, named
from hansa.task import Task

if TYPE_CHECKING:
    from hansa.config import Config

ANY: tuple[type[Optimizer], ...] = (Optimizer,)
Memory = Mapping[str, Tensor]  # what a site keeps for itself between rounds, by name


@dataclass(frozen=True)
class Step:
    """The local optimiser as an elementwise hook sees it."""

    lr: float
    momentum: float


class Local(Protocol):
    """What `local_update` may use at the site."""

    task: Task
    anchor: Tensor  # [P], the round's global vector
    shared: Vectors
    memory: Memory
    hyper: Mapping[str, Any]

    def fit(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        only: Iterable[str] = ("*",),
        without: Iterable[str] = (),
        hooks: bool = True,
    ) -> LocalRun:
        """Trains the model in place over the batches and tells what was done.

        Args:
            model: holds the start, and the result afterwards.
            batches: what is trained on; iterating it once is one round's local work.
            loss: of the model and a batch, in place of the task's.
            only: patterns of the names of the parameters that move; the others stay.
            without: patterns of names that stay although `only` has them.
            hooks: whether the strategy's elementwise hooks act.
        """
        ...

    def train_loss(self, model: nn.Module) -> float:
        """The task's mean loss over the site's training rows, the model as it is in evaluation."""
        ...

    def vector(self, model: nn.Module) -> Tensor:
        """The model's shared floats, [P]."""
        ...

    def load(self, vector: Tensor, model: nn.Module) -> None:
        """Puts a vector [P] into the model."""
        ...


class Strategy(Table):
    """A federated algorithm. Its fields are the keys of [strategy]; the defaults are FedAvg's.

    Elementwise hooks (`correct_grad`, `after_step`) see one tensor at a time: a parameter with its parts of the
    anchor, of the shared vectors and of the site's memory. They must not look at other tensors, so that they act
    alike after an all-reduce, on shards, and under `torch.func.vmap`.
    """

    needs: ClassVar[Literal["sum", "each"]] = "sum"  # of the updates; secure aggregation gives their sum, and no more
    optimizers: ClassVar[tuple[type[Optimizer], ...]] = ANY  # local optimisers for which the algorithm is valid
    stateless: ClassVar[bool] = False  # what local_update and finish override stages no memory
    local: tuple[str, ...] = ()  # name patterns of tensors that each site keeps to itself; <*Norm*>: of layers' kinds

    def check(self, config: "Config") -> Iterator[str]:
        """What is wrong with the strategy in view of [training]: an optimiser for which it is not valid."""
        if self.optimizers == ANY:
            return
        try:
            optimizer = Task().optimizer([nn.Parameter(torch.zeros(1))], config["training"].hyper(1))
        except UserError:
            return  # a name that only the user's task knows: the sites will see
        try:
            self.beside(optimizer)
        except UserError as error:
            yield f"{error}; change [training] optimizer"

    @property
    def digest(self) -> str:
        """SHA-256 over the algorithm's name and fields: two ends with one digest run the same algorithm."""
        text = f"{type(self).__qualname__} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()

    # the server half

    def start(self, params: Tensor, counters: Tensor, n_parameters: int) -> ServerState:
        """The state before the first round, from the initial model."""
        return ServerState(params, counters)

    def parts(self, size: int, n_parameters: int) -> Mapping[str, Part]:
        """The vectors of an upload, by name: their lengths and weights. `size` is P, `n_parameters` N."""
        return {"delta": Part(size, "examples", each=self.needs == "each")}

    def asks(self, sites: Sequence[str], round: int) -> Sequence[str] | None:
        """The sites asked in a round (from 1), of all, which are sorted; None: [rounds] says how many, chance which."""
        return None

    def broadcast(self, state: ServerState) -> Broadcast:
        """What the sites get at the start of a round."""
        return Broadcast(state.params, state.counters, state.shared)

    def hyper(self, round: int) -> Mapping[str, Any]:
        """Hyper-parameters of a round (from 1) that replace [training]'s; they are recorded."""
        return {}

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """The next state, from the mean of each part of the uploads and the share of all sites that took part.

        Of a part that has `each` a row for each site that took part, [sites, size], in the order of their names.
        """
        return replace(state, params=state.params + mean["delta"])

    # the client half

    def beside(self, optimizer: Optimizer) -> Self:
        """This strategy as it acts beside a local optimiser.

        Raises:
            UserError: the algorithm is not valid with it.
        """
        if not isinstance(optimizer, self.optimizers):
            names = ", ".join(kind.__name__ for kind in self.optimizers)
            raise UserError(
                f"[strategy] {type(self).__name__}: not valid with {type(optimizer).__name__}; it needs {names}"
            )
        return self

    def correct_grad(
        self, grad: Tensor, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step
    ) -> Tensor:
        """The gradient that the optimiser gets."""
        return grad

    def after_step(self, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step) -> Tensor:
        """The parameter after the optimiser's step."""
        return w

    def local_update(self, model: nn.Module, batches: Iterable[Any], ctx: Local) -> tuple[LocalRun, Memory]:
        """The site's work in a round, and the memory that it stages: one pass with the elementwise hooks.

        An algorithm that overrides this is free in what it does; the plain loop and deployed sites run it, engines
        that train many sites at once refuse it.
        """
        return ctx.fit(model, batches), ctx.memory

    def finish(self, run: LocalRun, shared: Vectors, memory: Memory) -> tuple[Upload, Memory]:
        """The upload, and the memory that is staged until the round is committed with this site in it."""
        return {"delta": run.delta}, memory

    def personal(self, params: Tensor, memory: Memory) -> Tensor | None:
        """The site's own model [P], where the algorithm has one beside the shared model: scored beside it."""
        return None


StrategyTable = Annotated[Strategy, named("strategies", Strategy, default="fedavg")]  # [strategy]
