"""A federation on this machine: its sites made, its run started or resumed, its results gathered."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clients.config import TrainingTable
from hansa.base import Base
from hansa.choose import choose
from hansa.device import choose_device, hardware, using_threads
from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.metrics import Sums, values
from hansa.records import Plan, Reply, ServerState
from hansa.runfolder import MODEL, PRIVACY
from hansa.seeds import key
from hansa.tables import A_NAME, is_name
from hansa.task import Source, Task
from hansa.workbench import Workbench
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from privacy.dp.statement import Statement
from privacy.dp.terms import riding
from server.checkpoint import BestInRam, Checkpoints, Keeper, Progress, RunLock
from server.cohort import InOrder, draw
from server.config import RoundsTable, count
from server.events import ALL, Event, Listener, Note, Scored
from server.recorder import Recorder, ending
from server.run import Outcome, Run, merged
from server.score import scorer
from server.securerules import secure_of
from server.sitelevel import level_of
from server.store import FILE, State, Store
from simulations.engines.base import Engine
from simulations.engines.choice import AUTO, Trial
from simulations.engines.rayconfig import RayTable
from simulations.engines.setting import Setting, Sites
from simulations.history import History
from simulations.pace import Clock, Pace
from simulations.privacy import check_stragglers, statements
from simulations.stragglers import Stragglers
from strategies.base import Strategy


@dataclass(frozen=True)
class Federation:
    """What is simulated."""

    task: Task
    strategy: Strategy
    sources: Mapping[str, Source | None]  # site -> its data; None: the task finds them
    training: TrainingTable
    rounds: RoundsTable
    stragglers: Stragglers | None = None
    seed: int = 0
    device: str = "auto"
    threads: int = 1
    text: str = field(default="", repr=False)  # federation.toml, if there is one
    name: str = "simulation"
    privacy: PrivacyTable = field(default_factory=PrivacyTable)
    dp: DpTable | None = None
    engine: str = "loop"
    workers: int | None = None  # that work at once; None: as many as there are cores for
    pace: Pace | None = None
    base: Base | None = None  # what the tensors that are not trained are; None: as the task makes them
    ray: RayTable = field(default_factory=RayTable)

    def hyper(self, round: int) -> dict[str, Any]:
        """The hyper-parameters of a round (from 1), as they go into its plan."""
        return self.training.hyper(round) | riding(self.dp, self.rounds.rounds)

    def __post_init__(self) -> None:
        check_stragglers(self.dp, self.stragglers)
        if ALL in self.sources:
            raise UserError(
                f'[simulation] sites: a site cannot be called "{ALL}", which stands for all of them; rename it'
            )

    def run(self, runs: Path, run: str, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> History:
        """Runs it, or goes on with it, in `runs/run`; the run store is in `runs`.

        Raises:
            UserError: bad input or data; a run to resume that is complete, unknown, or was started otherwise.
            RunFailed: too many rounds in a row did not count.
        """
        if not is_name(run):
            raise UserError(f"run {run!r}: a run's id must be {A_NAME}; choose another")
        store, folder = Store(runs / FILE), runs / run
        with RunLock(folder):
            checkpoints = Checkpoints(folder / "checkpoints")
            start = checkpoints.load() if resume else None
            self._enter(store, run, None if not resume else start[1].round if start else 0)
            return self._go(store, run, checkpoints, folder, start, listeners)

    def try_out(
        self, listeners: Sequence[Listener] = (), watch: Callable[[Plan, Reply], None] | None = None
    ) -> History:
        """Runs it and keeps nothing but the History; raises as `run` does. What watches gets each site's answers."""
        with tempfile.TemporaryDirectory() as scratch:
            store = Store(Path(scratch) / FILE, durable=False)
            self._enter(store, self.name, None)
            return self._go(store, self.name, BestInRam(), None, None, listeners, watch)

    def _go(
        self,
        store: Store,
        run: str,
        keeper: Keeper,
        folder: Path | None,
        start: tuple[ServerState, Progress] | None,
        listeners: Sequence[Listener],
        watch: Callable[[Plan, Reply], None] | None = None,
    ) -> History:
        with ending(store, run) as ended, using_threads(self.threads):
            simulation = Simulation(self, folder, [Recorder(store, run), *listeners], watch)
            entered = store.entry(run)["engine"]
            engine = simulation.engine(entered, run)
            if entered == AUTO:
                store.chose(run, engine)
            outcome = simulation.go(run, keeper, start, engine)
            ended.state = State.STOPPED_EARLY if outcome.early else State.FINISHED
        return simulation.history(run, outcome, store, engine)

    def _enter(self, store: Store, run: str, resumed_from: int | None) -> None:
        """Enters a new run, or reopens one that was started in the same way."""
        config, machine = self.text or self._as_json(), hardware(choose_device(self.device))
        if resumed_from is None:
            facts = {"seed": self.seed, "threads": self.threads}
            store.create(run, name=self.name, config=config, engine=self.engine, hardware=machine, **facts)
            return
        was, now = store.entry(run), {"config": config, "seed": self.seed, "threads": self.threads}
        if self.engine not in (AUTO, was["engine"]):
            mend = f'resume it with engine = "{was["engine"]}", or start a new run'
            raise UserError(f'run {run!r}: engine "{self.engine}", and it was started with "{was["engine"]}"; {mend}')
        for fact, value in {**now, "hardware": machine}.items():
            if was[fact] != value:
                mend = "resume it with the same file and --set, or start a new run"
                raise UserError(f"run {run!r}: {fact} is not what it was when the run was started; {mend}")
        store.reopen(run, resumed_from)

    def _as_json(self) -> str:
        tables = {"strategy": self.strategy, "training": self.training, "rounds": self.rounds}
        tables["privacy"] = self.privacy
        if self.dp is not None:
            tables["dp"] = self.dp
        if self.stragglers is not None:
            tables["stragglers"] = self.stragglers
        if self.pace is not None:
            tables["pace"] = self.pace
        kinds = {"task": type(self.task).__qualname__, "strategy_class": type(self.strategy).__qualname__}
        if self.base is not None:
            kinds["base"] = self.base.sha256
        return json.dumps(kinds | {key: table.model_dump() for key, table in tables.items()})


class Simulation:
    """One run at work."""

    def __init__(
        self,
        what: Federation,
        folder: Path | None,
        listeners: Sequence[Listener],
        watch: Callable[[Plan, Reply], None] | None = None,
    ) -> None:
        self.what, self.folder, self.listeners, self.watch = what, folder, listeners, watch
        device = choose_device(what.device)
        self.bench = Workbench(what.task, what.strategy.local, what.seed, device, what.base)
        self.test: dict[str, Sums] = {}
        memory = None if folder is None else folder / "memory"
        loaders = what.training.num_workers
        bare = Setting(what.task, what.strategy, what.sources, what.seed, device, loaders, memory, base=what.base)
        self.halves = Sites(bare, self.bench)
        self.secure = secure_of(
            simulated(what.privacy).under(what.dp), what.rounds, what.strategy, self.bench.shared, len(what.sources)
        )
        self.parts = what.strategy.parts(self.bench.shared.size, self.bench.shared.n_parameters)
        private = what.dp is not None and what.dp.unit != "site"
        self.setting = replace(
            bare, stragglers=what.stragglers, parts=self.parts, secure=self.secure, private=private, ray=what.ray
        )
        seed = what.seed
        self.level = level_of(
            what.dp, what.rounds, len(self.halves), self.parts, self.secure, lambda round: key(seed, round, "dp")
        )
        self.promised = self._statements()
        if what.rounds.chooses and not all(half.validates for half in self.halves.values()):
            mend = 'remove patience and set keep = "last", or let Task.valid_data give rows'
            raise UserError(f"[rounds]: no validation rows to choose the model by; {mend}")

    def go(self, run: str, keeper: Keeper, start: tuple[ServerState, Progress] | None, engine: str) -> Outcome:
        """Runs from a checkpoint, or from the task's initial model."""
        layout, strategy, what = self.bench.shared, self.what.strategy, self.what
        if start is None:
            start = strategy.start(*self.bench.start, layout.n_parameters), Progress()
        score = scorer(what.task, self.bench)
        kind = choose("engines", engine, Engine)
        if reason := kind.refuses(self.setting):
            raise UserError(f'[simulation] engine: "{engine}" cannot compute this run: {reason}')
        at_once = workers_of(what.workers, what.threads)
        with kind(self.setting, self.halves, at_once, self._site_report, self._clock(), self._ticked) as cohort:
            one = Run(run, what.seed, what.rounds, what.hyper, strategy, cohort, keeper, self.tell, score, self.level)
            return one.go(*start)

    def engine(self, named: str, run: str) -> str:
        """The engine that a run has by name, or finds: what watches whole answers hears them from the loop."""
        if self.watch is not None:
            return "loop"
        if named != AUTO:
            return named
        what, strategy = self.what, self.what.strategy
        hyper = merged(what.hyper(1), strategy, 1) | (self.level.hyper(None) if self.level is not None else {})
        sent = strategy.broadcast(strategy.start(*self.bench.start, self.bench.shared.n_parameters))
        plan = Plan(run, what.seed, 1, "train", "valid", sent, hyper)
        sites = InOrder(self.halves)
        asked = draw(sites, count(what.rounds.sites_per_round, len(sites)), what.seed, 1)
        workers = workers_of(what.workers, what.threads)
        choice = Trial(self.setting, self.halves, plan, asked, what.rounds.rounds, workers).choice()
        self.tell(Note(0, "info", f"engine {choice.engine}: {choice.why}"))
        return choice.engine

    def _clock(self) -> Clock | None:
        what, layout = self.what, self.bench.shared
        if what.pace is None:
            return None
        up = 4 * sum(part.size for part in self.parts.values())
        return Clock(what.pace, what.seed, lambda site: self.halves[site].counted()["rows"] or 0, 4 * layout.size, up)

    def _ticked(self, plan: Plan, seconds: float) -> None:
        self.tell(Scored(plan.round, "train", ALL, {"virtual_seconds": seconds}))

    def _statements(self) -> dict[str, Statement]:
        """What differential privacy promises, and whether it can: before anything is trained."""
        what = self.what
        if what.dp is None:
            return {}
        counted = {} if self.level is not None else {name: half.counted() for name, half in self.halves.items()}
        return statements(what.dp, what.training, what.rounds.rounds, counted, self.level)

    def tell(self, event: Event) -> None:
        """Gives an event to every listener."""
        for listener in self.listeners:
            listener(event)

    def history(self, run: str, outcome: Outcome, store: Store, engine: str) -> History:
        """The results; the run's folder gets the chosen model and all metrics."""
        frame = store.frame(run)
        found = outcome.state, outcome.round, outcome.early
        history = History(run, *found, self.bench, self.test, frame, self.promised, engine)
        if self.folder is not None:
            if self.promised:
                said = {site: one.to_dict() for site, one in self.promised.items()}
                write_atomically(self.folder / PRIVACY, json.dumps(said, indent=2).encode())
            store.export(run, self.folder)
            self.bench.save(outcome.state.params, outcome.state.counters, self.folder / MODEL)
        return history

    def _site_report(self, plan: Plan, reply: Reply) -> None:
        """A site's own numbers, which in deployment stay in the site's own report."""
        if self.watch is not None:
            self.watch(plan, reply)
        if plan.kind == "evaluate" and plan.split == "test":
            self.test[reply.site] = {name.removeprefix("test/"): one for name, one in reply.sums.items()}
        for split, at in (("train", plan.round), (plan.split, plan.round - 1)):
            sums = {n.removeprefix(f"{split}/"): s for n, s in reply.sums.items() if n.startswith(f"{split}/")}
            if sums:
                self.tell(Scored(at, split, reply.site, values(sums)))  # type: ignore[arg-type]


def workers_of(number: int | None, threads: int) -> int:
    """How many work at once: as many as were asked for, or as the cores allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return number or max(1, cores // threads)


def simulated(table: PrivacyTable) -> PrivacyTable:
    """[privacy] for a simulation, which goes without secure aggregation until it has been tuned."""
    untuned = table.secure == "auto" and table.clip is None
    return table.model_copy(update={"secure": False}) if untuned else table
