"""`hansa.simulate`: a federation on this machine, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clients.config import TrainingTable
from hansa.task import Task
from server.config import RoundsTable
from server.events import Listener
from simulations.config import Stragglers
from simulations.datasets.base import FederatedDataset
from simulations.federation import Federation
from simulations.history import History
from simulations.partition import Partition
from simulations.sources import sources
from strategies.base import Strategy
from strategies.fedavg import FedAvg


def simulate(
    task: Task,
    *,
    strategy: Strategy | None = None,
    sites: int | Sequence[str] | None = None,
    dataset: FederatedDataset | None = None,
    partition: Partition | None = None,
    training: TrainingTable | Mapping[str, Any] | None = None,
    rounds: RoundsTable | int = 10,
    stragglers: Stragglers | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 1,
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
        stragglers: sites that get through a part of their local work only.
        seed: from which every draw is derived.
        device: "auto", "cpu", "cuda", "cuda:i" or "mps".
        threads: of torch; results repeat for the same number.
        runs: the folder of runs, where the run is stored; by default nothing is kept but the History.
        run: the run's id there.
        resume: go on with that run, which was interrupted.
        listeners: get every event.

    Raises:
        UserError: something in the arguments or the data cannot be.
        RunFailed: too many rounds in a row did not count.
    """
    table = RoundsTable(rounds=rounds) if isinstance(rounds, int) else rounds
    work = training if isinstance(training, TrainingTable) else TrainingTable.model_validate(training or {})
    dealt, found = sources(task, sites, dataset, partition, seed)
    federation = Federation(dealt, strategy or FedAvg(), found, work, table, stragglers, seed, device, threads)
    if runs is None:
        return federation.try_out(listeners)
    return federation.run(Path(runs), run or "simulation", resume=resume, listeners=listeners)
