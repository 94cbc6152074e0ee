"""`hansa.simulate`: a federation on this machine, from Python."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from clients.config import TrainingTable
from hansa.base import Base
from hansa.errors import UserError
from hansa.tables import Device, Table
from hansa.task import Task
from hansa.words import spoken
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from server.config import RoundsTable
from server.events import Listener
from simulations.config import EngineName
from simulations.datasets.base import FederatedDataset
from simulations.federation import Federation
from simulations.history import History
from simulations.pace import Pace
from simulations.partition import Partition
from simulations.sources import sources
from simulations.stragglers import Stragglers
from strategies.base import Strategy
from strategies.fedavg import FedAvg

T = TypeVar("T", bound=Table)


class _Machine(Table):
    """Arguments of `simulate` that stand in different tables of a federation.toml."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    device: Device
    threads: Annotated[int, Field(ge=1, le=1024)]
    engine: EngineName
    workers: Annotated[int, Field(ge=1, le=1024)] | None


def simulate(
    task: Task,
    *,
    strategy: Strategy | None = None,
    sites: int | Sequence[str] | None = None,
    dataset: FederatedDataset | None = None,
    partition: Partition | None = None,
    training: TrainingTable | Mapping[str, Any] | None = None,
    rounds: RoundsTable | int = 10,
    privacy: PrivacyTable | Mapping[str, Any] | None = None,
    dp: DpTable | Mapping[str, Any] | None = None,
    stragglers: Stragglers | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 1,
    engine: str = "loop",
    workers: int | None = None,
    pace: Pace | None = None,
    base: Base | None = None,
    runs: Path | str | None = None,
    run: str | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
) -> History:
    """Runs a federation on this machine. The same arguments give the same bits.

    Args:
        task: model, data, loss and metrics.
        strategy: the algorithm; FedAvg by default.
        sites: names or number of the sites, for a task that finds each site's data itself.
        dataset: federated data, in place of the task's own.
        partition: deals pooled rows to sites: the dataset's, or what the task gives to one site.
        training: [training], as an object or as its keys.
        rounds: [rounds], or just the number of rounds.
        privacy: [privacy], as an object or as its keys.
        dp: [dp], differential privacy, as an object or as its keys.
        stragglers: sites that get through a part of their local work only.
        seed: from which every draw is derived.
        device: "auto", "cpu", "cuda", "cuda:i" or "mps".
        threads: of torch; results repeat for the same number.
        engine: what computes the sites, as in [simulation].
        workers: sites that are computed at once; by default as many as there are cores.
        pace: how fast sites are and how often there, in virtual time.
        base: weights of what is not trained, as [base] names them: `hansa.base.Base(path, sha256)`.
        runs: the folder of runs, where the run is stored; by default nothing is kept but the History.
        run: the run's id there.
        resume: go on with that run, which was interrupted.
        listeners: get every event.

    Raises:
        UserError: something in the arguments or the data cannot be.
        RunFailed: too many rounds in a row did not count.
    """
    for name, one, kind in (("task", task, Task), ("strategy", strategy or FedAvg(), Strategy)):
        if not isinstance(one, kind):
            raise UserError(f"simulate {name}: must be an object of a class that is a {kind.__name__}; got {one!r}")
    if isinstance(sites, str) or not isinstance(sites, Integral | Iterable | None):
        raise UserError(f"simulate sites: must be a number or a list of names; got {sites!r}")
    table = rounds if isinstance(rounds, RoundsTable) else _checked(RoundsTable, {"rounds": _plain(rounds)}, "simulate")
    work = training if isinstance(training, TrainingTable) else _checked(TrainingTable, training or {}, "[training]")
    hidden = privacy if isinstance(privacy, PrivacyTable) else _checked(PrivacyTable, privacy or {}, "[privacy]")
    guarded = dp if isinstance(dp, DpTable | None) else _checked(DpTable, dp, "[dp]")
    if guarded is not None and (problems := list(guarded.check({"rounds": table, "training": work}))):
        raise UserError(*problems)
    work_by = {"engine": engine, "workers": _plain(workers)}
    on = _checked(_Machine, {"seed": _plain(seed), "device": device, "threads": _plain(threads)} | work_by, "simulate")
    dealt, found = sources(task, _plain(sites), dataset, partition, on.seed)
    federation = Federation(
        dealt,
        strategy or FedAvg(),
        found,
        work,
        table,
        stragglers,
        on.seed,
        on.device,
        on.threads,
        privacy=hidden,
        dp=guarded,
        engine=on.engine,
        workers=on.workers,
        pace=pace,
        base=base,
    )
    if runs is None:
        return federation.try_out(listeners)
    return federation.run(Path(runs), run or "simulation", resume=resume, listeners=listeners)


def _checked(kind: type[T], values: Any, where: str) -> T:
    """A table from its keys; what is wrong in it is a line a problem."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise UserError(*(f"{where} {'.'.join(map(str, one['loc']))}: {spoken(one)}" for one in problems)) from None


def _plain(value: Any) -> Any:
    """A whole number of numpy's as Python's own."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
