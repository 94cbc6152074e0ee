"""What ranks are asked to do, and what one process does in its place: the numbers that come back are differences."""

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clients.batches import Batches
from clients.config import TrainingTable
from clients.dpsgd import DpTrainer
from clients.memory import MemoryOnDisk
from clients.parallel import shards
from clients.parallel.bench import ParallelBench
from clients.parallel.config import Degrees, ParallelKeys
from clients.parallel.dpsgd import spread as spread_privately
from clients.parallel.ranks import Ranks
from clients.parallel.scoring import evaluate
from clients.parallel.site import ParallelSite
from clients.parallel.slicer import ParallelBatches
from clients.parallel.trainer import ParallelTrainer
from clients.parallel.wrap import settle
from clients.poisson import PoissonBatches, rows_of_units
from clients.private import Drawn
from clients.site import SiteHalf
from clients.trainer import Trainer
from hansa.records import Plan, Refusal, Reply
from hansa.seeds import torch_generator
from hansa.task import Site, Source, Task
from hansa.workbench import Workbench
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream
from strategies.base import Strategy
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold

CPU = torch.device("cpu")
VOCABULARY, WIDTH, LENGTH = 10, 12, 6
SITE = (3, 1, "a")  # seed, round, name
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "fedavg": FedAvg,
    "fedprox": lambda: FedProx(mu=0.3),
    "scaffold": Scaffold,
}


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
        return {
            **cut,
            "layers.*.o": "rowwise",
            "layers.*.down": "rowwise",
            "token": "rowwise_embedding",
            "out": "colwise_gather",
        }


class Odd(Task):
    """Layers of sizes that two and four do not divide, a parameter that is not used, and a buffer."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 3))
        model.register_parameter("unused", nn.Parameter(torch.ones(3)))
        model.register_buffer("scale", torch.tensor([0.5, 2.0]))
        return model


class LowRank(nn.Module):
    """A layer that does not move, and a change of low rank to it that does (Hu et al. 2022)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + self.up(self.down(x))
        return out


def adapted() -> Transformer:
    """A transformer of which only adapters of two layers a block are trained; their changes are not zero."""
    model = Transformer().requires_grad_(False)
    for layer in model.layers:
        assert isinstance(layer, Block)
        layer.q, layer.v = LowRank(layer.q, 2), LowRank(layer.v, 2)  # type: ignore[assignment]
    return model


class Adapted(Words):
    """A language model that stays as it is, and adapters."""

    trainable_only = True

    def model(self) -> nn.Module:
        return adapted()


def words(rows: int) -> TensorDataset:
    return TensorDataset(torch.randint(VOCABULARY, (rows, LENGTH), generator=torch_generator(1, "words")))


def numbers(rows: int) -> TensorDataset:
    generator = torch_generator(1, "numbers")
    x = torch.randn(rows, 5, generator=generator)
    return TensorDataset(x, torch.randint(3, (rows,), generator=generator))


TASKS: dict[str, tuple[Callable[[], Task], Callable[[int], TensorDataset]]] = {
    "words": (Words, words),
    "odd": (Odd, numbers),
    "adapted": (Adapted, words),
}


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
        tied = [
            (p, e.of(self.shared["control"]).double() - e.of(self.memory["control"])) for e, p in self._entries(model)
        ]
        for batch in Batches(self.task, self.rows, self.hyper, SITE, CPU):
            batch = tuple(x.double() if x.is_floating_point() else x for x in batch)
            optimizer.zero_grad()
            torch.autograd.backward(self.task.loss(*self.task.forward(model, batch)))
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


def base_of(model: nn.Module) -> dict[str, bytes]:
    """A hash of each tensor that is not trained, of this rank's part of it."""
    frozen = {name: shards.local(p) for name, p in model.named_parameters() if not p.requires_grad}
    return {name: hashlib.sha256(p.detach().numpy().tobytes()).digest() for name, p in frozen.items()}


def untouched(ranks: Ranks, *, keys: dict[str, Any]) -> Any:
    """Whether two rounds and a score leave the base alone, how many hashes say so, and what is shared."""
    case = Case("adapted", "scaffold", 16, {"optimizer": "sgd", "momentum": 0.9})
    bench, trainer, batches = spread(case, ranks, keys)
    before = base_of(bench.model)
    for _ in range(2):
        trainer.fit(bench.load(case.anchor, case.plain.start[1], {}), batches)
        evaluate(case.task, bench, case.rows, 4)
    settle(bench.call)
    bench.check_frozen()
    return [base_of(bench.model) == before, len(before), sorted(e.name for e in bench.shared.floats)]


def meddled(ranks: Ranks, *, keys: dict[str, Any]) -> Any:
    """A task that writes to the base."""
    case = Case("adapted", "fedavg", 16, {})
    bench, _, _ = spread(case, ranks, keys)
    with torch.no_grad():
        shards.local(next(iter(bench.model.parameters()))).add_(1)
    bench.check_frozen()


def round_trip(ranks: Ranks, *, task: str, keys: dict[str, Any], dtype: str) -> Any:
    """Whether any vector [P] comes back bit for bit, NaN and all, and what share of the floats a rank holds."""

    class Typed(TASKS[task][0]):  # type: ignore[misc]  # chosen by name
        def model(self) -> nn.Module:
            return super().model().to(getattr(torch, dtype))  # type: ignore[no-any-return]

    bench = ParallelBench(Typed(), (), 0, CPU, ranks, ParallelKeys(**keys))
    vector = torch.randn(bench.shared.size, generator=torch_generator(3, "vector"))
    vector[::7] = float("nan")
    vector = vector.to(getattr(torch, dtype)).float()
    bench.load(vector, torch.zeros(0, dtype=torch.int64), {})
    held = sum(shards.local(p).numel() for p in bench.model.parameters())
    found, all_of_it = bench.read(), bench.everywhere()
    if found is None:
        return None
    same = [torch.equal(one.view(torch.int32), vector.view(torch.int32)) for one in (found, all_of_it)]
    return {"same": same, "held": held / bench.shared.n_parameters}


def drafted(ranks: Ranks, *, task: str, keys: dict[str, Any], file: str) -> Any:
    """Whether the update that all ranks write into a file is, bit for bit, the one that is put together at rank 0.

    Also where ranks look for it in a folder each, as on different machines.
    """
    bench = ParallelBench(TASKS[task][0](), (), 0, CPU, ranks, ParallelKeys(**keys))
    vectors = torch.randn(2, bench.shared.size, generator=torch_generator(3, "vectors"))
    bench.load(vectors[0], torch.zeros(0, dtype=torch.int64), {})
    gathered = bench.update(vectors[1])
    bench.draft_in(Path(file))
    found, draft = bench.update(vectors[1]), bench.draft
    bench.draft_in(Path(f"{file}.{ranks.rank}"))
    apart = bench.update(vectors[1])
    if draft is None:
        return None
    written = torch.frombuffer(bytearray(Path(file).read_bytes()), dtype=torch.float32)
    same = [torch.equal(gathered, vectors[0] - vectors[1]), torch.equal(found, gathered), torch.equal(written, found)]
    return {"same": [*same, torch.equal(apart, found)], "drafts": [draft.is_all_of(found), bench.draft is not None]}


class Noisy(Odd):
    """Dropout in the model, and noise in the batches; it keeps what it saw."""

    def __init__(self) -> None:
        self.saw: list[Tensor] = []

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        self.saw += [F.dropout(torch.ones(4, 8)), x]
        return model(x), y

    def batch_transform(self, batch: Any) -> Any:
        x, y = batch
        return x * 0 + torch.rand(x.shape), y


TASKS["noisy"] = (Noisy, numbers)


def randomness(ranks: Ranks, *, keys: dict[str, Any]) -> Any:
    """Whether random numbers are the same when a round is done again, and among ranks."""
    saw = []
    for _ in range(2):
        case = Case("noisy", "fedavg", 16, {"epochs": 1, "batch_size": 8})
        bench, trainer, batches = spread(case, ranks, keys)
        trainer.fit(bench.load(case.anchor, case.plain.start[1], {}), batches)
        saw.append(torch.cat([one.flatten() for one in case.task.saw]))  # type: ignore[attr-defined]
    others = [torch.empty_like(saw[0]) for _ in range(ranks.world)]
    dist.all_gather(others, saw[0])
    steps = saw[0].chunk(2)
    return {
        "again": torch.equal(*saw),
        "steps": torch.equal(*steps),
        "ranks": [torch.equal(others[0], other) for other in others[1:]],
    }


def private(ranks: Ranks, *, rate: float, units: int | None, noise: float, task: str = "odd") -> Any:
    """Differences of a round of DP-SGD from one process's, by the same key."""
    case = Case(task, "fedprox", 24, {"steps": 6, "epochs": None, "lr": 0.1})
    groups = None if units is None else rows_of_units([row % units for row in range(24)])
    kind: Any = "record" if units is None else "group"
    mechanism = DpSgd(kind, units or 24, rate, noise, 0.5, 6)

    def drawn() -> Drawn:
        stream = Stream(bytes(range(32)))
        batches = PoissonBatches(case.task, case.rows, mechanism, stream, CPU, groups)
        return Drawn(batches, DpTrainer(**vars(case.trainer()), mechanism=mechanism, stream=stream))

    alone = drawn()
    plain = alone.trainer.fit(case.plain.load(case.anchor, case.plain.start[1], {}), alone.batches)
    bench = ParallelBench(case.task, (), 0, CPU, ranks, ParallelKeys(parallel=Degrees(dp=ranks.world)))
    shared = spread_privately(drawn(), bench)
    run = shared.trainer.fit(bench.load(case.anchor, case.plain.start[1], {}), shared.batches)
    everywhere = [torch.empty_like(run.delta) for _ in range(ranks.world)]
    dist.all_gather(everywhere, run.delta)
    return {
        "moved": float(plain.delta.abs().max()),
        "apart": float((run.delta - plain.delta).abs().max()),
        "ranks": all(torch.equal(everywhere[0], other) for other in everywhere),
        "seen": [vars(shared.trainer.seen), vars(alone.trainer.seen)],
        "event": shared.trainer.mechanism.event == alone.trainer.mechanism.event,
    }


class Places(Source):
    """Rows of a case for a site."""

    def __init__(self, rows: TensorDataset) -> None:
        self.rows = rows

    def split(self, name: str) -> TensorDataset:
        """The same for training and test."""
        return self.rows


def site(ranks: Ranks, *, folder: str, keys: dict[str, Any], strategy: str, dp: dict[str, Any] | None) -> Any:
    """A site's answers to three plans, from one process and from many: the largest difference of each part."""
    algorithm = STRATEGIES[strategy]().model_copy(update={"local": ("4.*",)})
    data, where = Places(numbers(41)), Path(folder)
    plain = Workbench(Odd(), algorithm.local, 5, CPU)
    bench = ParallelBench(Odd(), algorithm.local, 5, CPU, ranks, ParallelKeys(**keys))
    own = Site("a", 5, data)
    key = bytes([7 if ranks.leads else 8]) * 32
    many = ParallelSite(Odd(), algorithm, own, bench, MemoryOnDisk(where / "many"), key=lambda plan, name: key)
    one = SiteHalf(
        Odd(), algorithm, own, plain, MemoryOnDisk(where / f"one-{ranks.rank}"), key=lambda *_: bytes([7]) * 32
    )
    shapes = [{name: list(shape) for name, shape in half.shapes().items()} for half in (many, one)]
    hyper = TrainingTable(epochs=1, batch_size=8, lr=0.2).hyper(1) | ({} if dp is None else {"dp": dp})
    state = algorithm.start(*plain.start, plain.shared.n_parameters)
    apart: dict[str, float] = {}
    memory: dict[str, str] = {}
    for number in (1, 2):
        plan = Plan("run", 5, number, "train", "valid", algorithm.broadcast(state), hyper, memory)
        answers = [_answer(half.handle(plan)) for half in (many, one)]
        scored = [_answer(half.handle(replace(plan, kind="evaluate", split="test"))) for half in (many, one)]
        memory = {"a": plan.version}
        state = algorithm.step(state, answers[1].upload, 1.0)
        if ranks.leads:
            for got, truth in (answers, scored):
                apart |= {f"{number} {k}": float((got.upload[k] - v).abs().max()) for k, v in truth.upload.items()}
                apart |= {f"{number} {k}": float((got.sums[k] - v).abs().max()) for k, v in truth.sums.items()}
                assert (got.examples, got.memory, set(got.sums)) == (truth.examples, truth.memory, set(truth.sums))
    return {"apart": apart, "shapes": shapes[0] == shapes[1]}


def _answer(found: Reply | Refusal) -> Reply:
    assert isinstance(found, Reply)
    return found


class Unplanned(Odd):
    """No plan of tensor parallelism."""


class Misplanned(Words):
    """A plan for a layer that is not there."""

    def parallel_plan(self, model: nn.Module) -> Mapping[str, Any]:
        return {"layers.*.gate": "colwise"}


class Crooked(Words):
    """A style that is none."""

    def parallel_plan(self, model: nn.Module) -> Mapping[str, Any]:
        return {"out": "diagonal"}


class Indivisible(Words):
    """17 columns for two."""

    def model(self) -> nn.Module:
        return Transformer(inner=17)


class Normed(Odd):
    """Batch normalisation."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))


class Remembering(Odd):
    """A buffer that follows the rows."""

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        model.get_buffer("scale").mul_(0.9).add_(x.mean() * 0.1)
        return model(x), y


class Tied(Words):
    """A tensor that is in two blocks."""

    def model(self) -> nn.Module:
        model = Transformer()
        model.layers[0].q.weight = model.layers[1].q.weight  # type: ignore[union-attr]
        return model


class Mixed(Odd):
    """Two types of floats."""

    def model(self) -> nn.Module:
        model = super().model()
        assert isinstance(model, nn.Sequential)
        model[0].bfloat16()
        return model


class Muddled(Odd):
    """An optimiser that needs whole tensors."""

    def optimizer(self, params: Any, hyper: Any) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(params)


class Looping(FedAvg):
    """Goes over the batches itself."""

    def local_update(self, model: Any, batches: Any, ctx: Any) -> Any:
        return [batch for batch in batches], {}


class Copying(FedAvg):
    """Trains another model."""

    def local_update(self, model: Any, batches: Any, ctx: Any) -> Any:
        return ctx.fit(copy.deepcopy(model), batches), {}


class Listing(FedAvg):
    """Trains on batches of its own."""

    def local_update(self, model: Any, batches: Any, ctx: Any) -> Any:
        return ctx.fit(model, [1]), {}


def refusal(ranks: Ranks, *, kind: str, keys: dict[str, Any], strategy: str, training: dict[str, Any]) -> Any:
    """Does a round that is refused."""
    data = words if issubclass(globals()[kind], Words) else numbers
    TASKS[kind] = (globals()[kind], data)
    STRATEGIES.update(looping=Looping, copying=Copying, listing=Listing, ditto=Ditto)
    case = Case(kind, strategy, 16, training)
    bench, trainer, batches = spread(case, ranks, keys)
    model = bench.load(case.anchor, case.plain.start[1], {})
    case.strategy.local_update(model, batches, trainer)
    return "not refused"


class Padded(Words):
    """Sentences of several lengths: 0 is padding, and the loss is over what is not."""

    def loss(self, output: Any, target: Any) -> Tensor:
        return F.cross_entropy(output, target, ignore_index=0)

    def count(self, batch: Any) -> Tensor:
        (x,) = batch
        there: Tensor = x[:, 1:] != 0
        return there.sum()


def padded(rows: int) -> TensorDataset:
    (x,) = words(rows).tensors
    return TensorDataset(torch.where(torch.arange(LENGTH) > torch.arange(rows)[:, None] % LENGTH, 0, x))


TASKS["padded"] = (Padded, padded)


def auto(ranks: Ranks) -> Any:
    """What is chosen for a small model, and what is said."""
    bench = ParallelBench(Odd(), (), 0, CPU, ranks, ParallelKeys())
    return [bench.degrees.model_dump(), bench.said]
