"""[simulation]: the sites of a simulated federation, their data, and where it computes."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from clients.config import TrainingTable
from clients.datatable import SOURCES, DataTable
from hansa.choose import choose
from hansa.tables import Device, Name, Table, named
from simulations.datasets.base import FederatedDataset
from simulations.engines.base import Engine
from simulations.engines.choice import AUTO
from simulations.engines.rayconfig import RayTable
from simulations.pace import Pace
from simulations.partition import PartitionTable
from simulations.stragglers import Stragglers

if TYPE_CHECKING:
    from hansa.config import Config


def _engine(name: str) -> str:
    """An engine's name, or "auto"."""
    if name != AUTO:
        choose("engines", name, Engine)
    return name


EngineName = Annotated[str, AfterValidator(_engine)]


class SimulationTable(Table):
    """[simulation]: which sites there are, whence their data, how the simulation runs."""

    engine: EngineName = "loop"  # what computes the sites
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None  # that work at once; None: as many as there are cores
    sites: Annotated[int, Field(ge=1)] | Annotated[tuple[Name, ...], Field(min_length=1)] | None = Field(
        default=None, description='a number of sites, at least 1, or a list of names such as ["boston", "lyon"]'
    )  # where neither a dataset nor a partition tells
    dataset: Annotated[FederatedDataset, named("datasets", FederatedDataset)] | None = None
    partition: PartitionTable | None = None  # deals the dataset's pooled rows, those of [data], or the task's
    stragglers: Stragglers | None = None
    pace: Pace | None = None
    ray: RayTable | None = None
    device: Device = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1  # of torch; results repeat for the same number
    runs: Annotated[str, Field(pattern=r"^[^\x00]+$", description="the path of a folder")] = (
        "runs"  # folder of the run store, relative to federation.toml
    )

    @model_validator(mode="after")
    def _sites_once(self) -> Self:
        if self.sites is not None and self.partition is not None:
            raise ValueError("sites: the partition makes the sites; remove it here")
        if self.sites is not None and self.dataset is not None:
            raise ValueError("sites: the dataset has sites of its own; remove it, or write a partition")
        if not isinstance(self.sites, tuple):
            return self
        twice = [name for name, count in Counter(self.sites).items() if count > 1]
        if twice:
            raise ValueError(f'sites: "{twice[0]}" stands twice; remove one')
        return self

    def check(self, config: "Config") -> Iterator[str]:
        """What is wrong in view of [data] and [training]."""
        if "data" in config:
            yield from self._against_data(config.table("data", DataTable))
        if self.engine != "ray" and self.ray is not None:
            yield 'ray: it is for engine = "ray"; remove the table, or set the engine'
        if self.ray is not None and self.ray.address is not None and self.workers is None:
            yield "workers: say how many actors the Ray cluster is to run"
        work = config.table("training", TrainingTable)
        if self.stragglers and self.stragglers.keep and (work.steps or work.epochs or 1) == 1:
            yield "stragglers: keep has no effect with one epoch or step a round; set [training] epochs to 2 or more"

    def _against_data(self, data: DataTable) -> Iterator[str]:
        by_site = any("{site}" in str(getattr(data, name)) for name in SOURCES) or ":site" in (data.query or "")
        if self.dataset is not None:
            yield "dataset: [data] says where the rows are as well; keep one of them"
        elif self.partition is not None and by_site:
            yield "partition: it deals rows of one source, but [data] has one for each {site}; keep one of them"
        elif self.partition is None and self.sites is None and by_site:
            yield 'sites: [data] has rows for each {site}; name the sites, e.g. sites = ["boston", "lyon"]'
        elif self.sites is not None and not by_site:
            yield "sites: all would have the same rows; write {site} in the path of [data], or a partition"
