"""What a site does with a plan. Pure: no socket, no clock; deployed sites and the simulation call the same object."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from clients.batches import Batches, OwnStream
from clients.dpsgd import Seen
from clients.memory import MemoryStore
from clients.private import Drawn, drawn
from clients.rowwise import Way, tried
from clients.split import groups_of, valid_split
from clients.trainer import Trainer
from clients.workers.progress import Progress
from hansa.errors import UserError
from hansa.evaluate import EVALUATION_ROWS, evaluate
from hansa.metrics import Sums
from hansa.records import LocalRun, Plan, Refusal, Reply
from hansa.seeds import seeded
from hansa.task import FROM_TRAIN, Dataset, Site, Task, sized
from hansa.workbench import Workbench
from privacy.dp.terms import DpTerms, terms_in
from strategies.base import Memory, Strategy

PROBED = 4  # rows that tell which metrics there are


@dataclass(frozen=True)
class Begun:
    """A train plan that a site has taken up."""

    memory: Memory  # that it starts from
    train: Dataset
    sums: Sums  # of the incoming model on validation rows


@dataclass
class SiteHalf:
    """One site: its data, its memory, and what it answers to a plan."""

    task: Task
    strategy: Strategy
    site: Site
    bench: Workbench
    memory: MemoryStore
    workers: int = 0  # processes that load rows
    key: Callable[[Plan, str], bytes] = lambda plan, site: os.urandom(32)  # of coins and noise: never twice the same

    def __post_init__(self) -> None:
        self.seen: Seen | None = None  # what the last plan under differential privacy met
        self.progress: Progress | None = None  # where it is kept how far training is, if it is
        self.seeding: Callable[..., AbstractContextManager[None]] = seeded  # of what training draws

    @property
    def answers(self) -> bool:
        """Whether an upload is made, and memory staged."""
        return True

    def handle(self, plan: Plan) -> Reply | Refusal:
        """Trains or evaluates as the plan says; a site without rows sits out.

        The answer is all that the site knows: what of it may leave, `clients.private.released` says.
        """
        memory = self.memory.load(plan.memory.get(self.site.name))
        return self._train(plan, memory) if plan.kind == "train" else self._evaluate(plan, memory)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the metric sums that the site can give, by name: a few rows go through the model as it is."""
        found: dict[str, tuple[int, ...]] = {"train/loss": (2,)}
        model = self.bench.load(*self.bench.start, {})
        scopes = ("",) if type(self.strategy).personal is Strategy.personal else ("", "personal_")
        for split, rows in (("valid", self._rows[1]), ("test", self._test_rows)):
            if rows is not None and len(rows):
                few = Subset(rows, range(min(PROBED, len(rows))))  # type: ignore[arg-type,var-annotated]
                sums = self._sums(model, few, PROBED)
                found |= {f"{split}/{scope}{name}": tuple(one.shape) for name, one in sums.items() for scope in scopes}
        return found

    def counted(self) -> dict[str, int | None]:
        """Rows of training, and the groups whose they are, None where no id says whose a row is."""
        groups = groups_of(self._rows[0])
        return {"rows": len(self._rows[0]), "groups": None if groups is None else len(torch.unique(groups))}

    @property
    def validates(self) -> bool:
        """Whether the site has rows to choose a model by."""
        return self._rows[1] is not None

    def _evaluate(self, plan: Plan, memory: Memory) -> Reply | Refusal:
        rows = self._rows[1] if plan.split == "valid" else self._test_rows
        if rows is None or not len(rows):
            return Refusal(self.site.name, f"no {plan.split} rows")
        return Reply(self.site.name, len(rows), sums=self._score(plan, memory, rows))

    def _train(self, plan: Plan, memory: Memory) -> Reply | Refusal:
        begun = self.begin(plan, memory)
        if isinstance(begun, Refusal):
            return begun
        return self.answer(plan, begun, *self.fit(plan, begun))

    def begin(self, plan: Plan, memory: Memory) -> Begun | Refusal:
        """Takes a train plan up: the incoming model is scored, and the rows are there."""
        train, valid = self._rows
        if not len(train):
            return Refusal(self.site.name, "no training rows")
        return Begun(memory, train, self._score(plan, memory, valid) if valid is not None and len(valid) else {})

    def fit(self, plan: Plan, begun: Begun) -> tuple[LocalRun, Memory]:
        """Local training, and the memory that it leaves."""
        model = self.bench.load(plan.broadcast.params, plan.broadcast.counters, begun.memory)
        context = self._trainer(plan, begun.memory, len(begun.train))
        run, staged = _pair(self._fit(model, context, plan, begun.train), "local_update")
        self.bench.check_frozen()
        return run, staged

    def answer(self, plan: Plan, begun: Begun, run: LocalRun, staged: Memory) -> Reply | Refusal:
        """What comes of training: the upload is made, and memory staged."""
        if not run.steps:
            return Refusal(self.site.name, _idle(plan.hyper["precision"]))
        layers = self.bench.keep_local({})
        if not self.answers:
            return Reply(self.site.name, run.examples)
        upload, staged = _pair(self.strategy.finish(run, plan.broadcast.shared, staged), "finish")
        staged = {**staged, **layers}
        if staged:
            self.memory.stage(plan.version, staged, plan.memory.get(self.site.name))
        sums = begun.sums | {f"train/{name}": one for name, one in run.sums.items()}
        version = plan.version if staged else None
        return Reply(self.site.name, run.examples, upload, run.counters, sums, version)

    def _fit(self, model: nn.Module, context: Trainer, plan: Plan, train: Dataset) -> Any:
        if (terms := terms_in(plan.hyper)) is not None and terms.unit != "site":
            return self._fit_private(terms, model, context, plan, train)
        if self._stream:  # it draws from the global generator as the task left it
            return self.strategy.local_update(model, self._stream.round(plan.hyper, self.bench.device), context)
        batches = self.batches(plan, train)
        with self.seeding(*batches.purpose, "train"):
            return self.strategy.local_update(model, batches, context)

    def batches(self, plan: Plan, train: Dataset) -> Batches:
        """The plan's batches of training rows."""
        where = (plan.seed, plan.round, self.site.name)
        return Batches(self.task, train, plan.hyper, where, self.bench.device, self.workers)

    def _fit_private(self, terms: DpTerms, model: nn.Module, context: Trainer, plan: Plan, train: Dataset) -> Any:
        if self._stream:
            name = type(self.task).__name__
            raise UserError(f"[dp]: task {name} has batches of its own, and rows must be drawn by chance; remove them")
        key, way = self._key(plan), self._way
        model = self.bench.load(plan.broadcast.params, plan.broadcast.counters, context.memory)
        one = self._drawn(drawn(terms, context, self.strategy, self.task, train, key, self.workers, way))
        self.seen = one.trainer.seen
        return self.strategy.local_update(model, one.batches, one.trainer)

    def _key(self, plan: Plan) -> bytes:
        return self.key(plan, self.site.name)

    def _drawn(self, one: Drawn) -> Drawn:
        return one

    def _trainer(self, plan: Plan, memory: Memory, rows: int) -> Trainer:
        sent, device = plan.broadcast, self.bench.device
        layout = self.bench.shared
        # What an algorithm that trains in its own way has done before a pass, or keeps beside it, is not known here.
        progress = self.progress if type(self.strategy).local_update is Strategy.local_update else None
        bound = (self.task, self.strategy, layout, sent.params, sent.shared, memory, plan.hyper, device, rows)
        return Trainer(*bound, progress=progress)

    def _score(self, plan: Plan, memory: Memory, rows: Dataset) -> dict[str, Tensor]:
        """Metric sums of the shared model, and of the site's own where the strategy has one."""
        size = max(EVALUATION_ROWS, int(plan.hyper["batch_size"]))
        model = self.bench.load(plan.broadcast.params, plan.broadcast.counters, memory)
        sums = self._sums(model, rows, size)
        scored = {f"{plan.split}/{name}": one for name, one in sums.items()}
        own = self.strategy.personal(plan.broadcast.params, memory)
        if own is not None:
            sums = self._sums(self.bench.write(own), rows, size)
            scored |= {f"{plan.split}/personal_{name}": one for name, one in sums.items()}
        return scored

    def _sums(self, model: nn.Module, rows: Dataset, size: int) -> Sums:
        return evaluate(self.task, model, rows, size, self.bench.device)

    @cached_property
    def _rows(self) -> tuple[Dataset, Dataset | None]:
        """Training and validation rows."""
        train, valid = sized(self.task.train_data(self.site), "train_data"), self.task.valid_data(self.site)
        if valid is not FROM_TRAIN:
            return train, None if valid is None else sized(valid, "valid_data")
        return valid_split(train, self.task.valid_fraction, self.site.seed, self.site.name)

    @cached_property
    def _test_rows(self) -> Dataset | None:
        rows = self.task.test_data(self.site)
        return None if rows is None else sized(rows, "test_data")

    @cached_property
    def _way(self) -> Way:
        """To the gradients of units, tried on the model that the run starts with: a plan's would let the server ask."""
        return tried(self.task, self.bench.load(*self.bench.start, {}), self._rows[0], self.bench.device)

    @cached_property
    def _stream(self) -> OwnStream:
        return OwnStream(self.task, self.site, self._rows[0])


def _idle(precision: str) -> str:
    """Why a round brought no step."""
    if precision == "float16":
        return 'no training step was taken, float16 overflowed in each; set precision = "bfloat16", or more steps'
    return "no training step was taken"


def _pair(both: Any, hook: str) -> tuple[Any, Any]:
    """What a strategy's hook gave: something, and the memory."""
    if not isinstance(both, tuple) or len(both) != 2:
        raise UserError(f"[strategy]: {hook} gave {type(both).__name__}; return two values, the second the memory")
    return both
