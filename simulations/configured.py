"""The federation that a federation.toml describes."""

from collections.abc import Mapping
from pathlib import Path

from clients.config import TrainingTable
from clients.data import DataTable, open_source
from hansa.base import BaseTable
from hansa.blame import own_code
from hansa.config import Config
from hansa.tables import FederationTable
from hansa.task import Source, Task
from hansa.taskfile import load_class, made
from privacy.config import PrivacyTable
from server.config import RoundsTable
from simulations.config import SimulationTable
from simulations.datasets.base import divide
from simulations.engines.rayconfig import RayTable
from simulations.federation import Federation
from simulations.partition import numbered
from simulations.sources import TaskRows, sources
from strategies.base import Strategy
from strategies.fedavg import FedAvg


def federation_of(config: Config) -> Federation:
    """The task loaded, the sites and their sources found; no row is read yet, unless a partition deals them.

    Raises:
        UserError: the task cannot be loaded, or there are no sites.
    """
    head, table = config.table("federation", FederationTable), config.table("simulation", SimulationTable)
    task = made(load_class(head.task, config.folder, Task, "task"), "task")
    strategy = config.table("strategy", Strategy) if "strategy" in config else FedAvg()
    with own_code(type(task)):
        if "data" in config:
            found = _configured(config.table("data", DataTable), table, config.folder, head.seed)
        else:
            task, found = sources(task, table.sites, table.dataset, table.partition, head.seed)
    return Federation(
        task,
        strategy,
        found,
        config.table("training", TrainingTable),
        config.table("rounds", RoundsTable),
        table.stragglers,
        head.seed,
        table.device,
        table.threads,
        config.text,
        head.name,
        config.table("privacy", PrivacyTable),
        config.get("dp"),
        table.engine,
        table.workers,
        table.pace,
        config.table("base", BaseTable).beside(config.folder) if "base" in config else None,
        ray=table.ray or RayTable(),
    )


def _configured(data: DataTable, table: SimulationTable, folder: Path, seed: int) -> Mapping[str, Source | None]:
    """Sources by [data]: a file for each site, or one whose rows a partition deals."""
    if table.partition is not None:
        whole = open_source(data, folder, "all", seed)
        return divide(TaskRows(train=whole.split("train"), test=whole.split("test")), table.partition, seed)
    names = numbered(table.sites) if isinstance(table.sites, int) else table.sites
    return {name: open_source(data, folder, name, seed) for name in names or numbered(1)}
