"""What ranks are asked to do, and what one process does in its place: the numbers that come back are differences."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clients.batches import Batches
from clients.config import TrainingTable
from clients.parallel import shards
from clients.parallel.bench import ParallelBench
from clients.parallel.config import ParallelKeys
from clients.parallel.ranks import Ranks
from clients.parallel.slicer import ParallelBatches
from clients.parallel.trainer import ParallelTrainer
from clients.trainer import Trainer
from hansa.seeds import torch_generator
from hansa.task import Task
from hansa.workbench import Workbench
from strategies.base import Strategy
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold

CPU = torch.device("cpu")
VOCABULARY, WIDTH, LENGTH = 10, 12, 6
SITE = (3, 1, "a")  # seed, round, name
STRATEGIES = {"fedavg": FedAvg, "fedprox": lambda: FedProx(mu=0.3), "scaffold": Scaffold}


class Block(nn.Module):
    """A transformer's, whose heads may be cut."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.head = width // heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.n1(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.n2(x))))
        return out


class Transformer(nn.Module):
    """Tokens to the next token's logits."""

    def __init__(self, layers: int = 2, width: int = WIDTH, inner: int = 18) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Block(width, 2, inner) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.out(self.norm(x))
        return logits


class Words(Task):
    """A language model."""

    def model(self) -> nn.Module:
        return Transformer()

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        (x,) = batch
        return model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()

    def parallel_plan(self, model: nn.Module) -> Mapping[str, Any]:
        cut: dict[str, Any] = {f"layers.*.{name}": "colwise" for name in ("q", "k", "v", "up")}
        return {**cut, "layers.*.o": "rowwise", "layers.*.down": "rowwise", "out": "colwise_gather"}


class Odd(Task):
    """Layers of sizes that two and four do not divide, a parameter that is not used, and a buffer."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 3))
        model.register_parameter("unused", nn.Parameter(torch.ones(3)))
        model.register_buffer("scale", torch.tensor([0.5, 2.0]))
        return model


def words(rows: int) -> TensorDataset:
    return TensorDataset(torch.randint(VOCABULARY, (rows, LENGTH), generator=torch_generator(1, "words")))


def numbers(rows: int) -> TensorDataset:
    generator = torch_generator(1, "numbers")
    x = torch.randn(rows, 5, generator=generator)
    return TensorDataset(x, torch.randint(3, (rows,), generator=generator))


TASKS = {"words": (Words, words), "odd": (Odd, numbers)}


class Case:
    """One site's round: the same for one process and for many."""

    def __init__(self, task: str, strategy: str, rows: int, training: Mapping[str, Any]) -> None:
        kind, data = TASKS[task]
        self.task, self.rows = kind(), data(rows)
        self.strategy: Strategy = STRATEGIES[strategy]()
        given = {"epochs": 2, "batch_size": 8, "lr": 0.2, **training}
        self.hyper = TrainingTable(**given).hyper(1)
        self.plain = Workbench(self.task, (), 0, CPU)
        n = self.plain.shared.n_parameters
        self.anchor = self.plain.start[0]
        draw = torch_generator(2, "control")
        control, own = (torch.randn(n, generator=draw) * 0.05 for _ in range(2))
        self.shared = {"control": control} if strategy == "scaffold" else {}
        self.memory = {"control": own} if strategy == "scaffold" else {}

    def trainer(self) -> Trainer:
        same = (self.task, self.strategy, self.plain.shared, self.anchor, self.shared, self.memory)
        return Trainer(*same, self.hyper, CPU, len(self.rows))

    def by_hand(self) -> Tensor:
        """The trained vector, [P] float64: the definition of a step, in one process."""
        model = copy.deepcopy(self.plain.model).double()
        layout, start = self.plain.shared, [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), self.hyper["lr"], self.hyper["momentum"])
        tied = [(p, e.of(self.shared["control"]).double() - e.of(self.memory["control"])) for e, p in self._entries(model)]
        for batch in Batches(self.task, self.rows, self.hyper, SITE, CPU):
            batch = tuple(x.double() if x.is_floating_point() else x for x in batch)
            optimizer.zero_grad()
            self.task.loss(*self.task.forward(model, batch)).backward()
            for p, at in zip(model.parameters(), start, strict=True):
                if isinstance(self.strategy, FedProx) and p.grad is not None:
                    p.grad += self.strategy.mu * (p.detach() - at)
            for p, term in tied:
                if p.grad is not None:
                    p.grad += term
            if self.hyper["clip_norm"] is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.hyper["clip_norm"])
            optimizer.step()
        vector = torch.empty(layout.size, dtype=torch.float64)
        for entry in layout.floats:
            entry.of(vector).copy_({**dict(model.named_parameters()), **dict(model.named_buffers())}[entry.name].data)
        return vector

    def _entries(self, model: nn.Module) -> list[Any]:
        if not self.shared:
            return []
        named = dict(model.named_parameters())
        return [(entry, named[entry.name]) for entry in self.plain.shared.parameters]


def spread(case: Case, ranks: Ranks, keys: Mapping[str, Any]) -> tuple[ParallelBench, ParallelTrainer, ParallelBatches]:
    bench = ParallelBench(case.task, (), 0, CPU, ranks, ParallelKeys(**keys))
    trainer = ParallelTrainer.of(case.trainer(), bench)
    dtype = torch.float64 if bench.keys.precision == "float64" else None
    return bench, trainer, ParallelBatches(case.task, case.rows, case.hyper, SITE, CPU, 0, bench.share, dtype)


def update(ranks: Ranks, *, task: str, strategy: str, rows: int, keys: dict[str, Any], training: dict[str, Any]) -> Any:
    """Differences of one round's update: float64 parameters, and the update after the layout, from one process's."""
    case = Case(task, strategy, rows, training)
    bench, trainer, batches = spread(case, ranks, {**keys, "precision": "float64"})
    run = trainer.fit(bench.load(case.anchor, case.plain.start[1], {}), batches)
    out = torch.empty(case.plain.shared.size, dtype=torch.float64) if ranks.leads else None
    shards.read(bench.model, case.plain.shared, out)
    truth = case.by_hand()
    plain = case.trainer().fit(
        case.plain.load(case.anchor, case.plain.start[1], {}), Batches(case.task, case.rows, case.hyper, SITE, CPU)
    )
    if out is None:
        return None
    loss = [float(one.sums["loss"][0] / one.sums["loss"][1]) for one in (run, plain)]
    return {
        "moved": float((truth - case.anchor).abs().max()),
        "float64": float((out - truth).abs().max()),
        "layout": float((run.delta - (truth - case.anchor)).abs().max()),
        "float32": float((run.delta - plain.delta).abs().max()),
        "loss": abs(loss[0] - loss[1]),
        "same": [run.steps == plain.steps, run.lr_sum == plain.lr_sum, run.examples == plain.examples],
    }
