"""site.toml: what a site allows, where its rows are, what it computes on. The site writes it and has the last word."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clients.bounds import BoundsTable
from clients.datatable import DataTable
from clients.parallel.config import ParallelKeys
from clients.slurm.config import SlurmTable
from hansa.address import Dialled
from hansa.config import checked
from hansa.document import Document
from hansa.endfile import Digest, FlowerTable
from hansa.errors import UserError
from hansa.proxy import ProxyUrl
from hansa.tables import A_NAME, Device, Name, Table
from privacy.secagg.terms import LEAST_SITES


class SiteTable(Table):
    """[site]: who this site is, and where the server is."""

    name: Annotated[Name, Field(description=A_NAME)]
    server: Dialled = Field(description="host:port of the server's Flower end, e.g. fl.example.org:9092")
    session: Dialled | None = None  # host:port of the server's session end; None: as the invitation says


class NetworkTable(Table):
    """[network]: the way to the server."""

    gate: bool = False  # whether [site] server is the server's public port, by which everything goes
    proxy: ProxyUrl | None = None  # on the way to it; None: as HANSA_PROXY says, or none

    @model_validator(mode="after")
    def _passable(self) -> Self:
        if self.proxy is not None and not self.gate:
            raise ValueError("a proxy leads to the server's public port only; set gate = true, or leave proxy out")
        return self


class AppsTable(Table):
    """[apps]: whose code may run here."""

    allowed: tuple[Digest, ...] = ()


class SiteTrainingTable(ParallelKeys):
    """[training] of a site: what it computes on. What is computed stands in the app's federation.toml."""

    device: Device = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None  # of torch, a rank; None: as many as there are, shared evenly
    num_workers: Annotated[int, Field(ge=0)] = 0  # processes that load rows; that of federation.toml is passed over
    procs: Annotated[int, Field(ge=1, le=1024)] = 1  # ranks: processes that train together
    devices: tuple[Device, ...] = ()  # of a machine's ranks, in their order; none: a GPU each, where there are GPUs
    mode: Literal["local", "agents", "slurm"] = (
        "local"  # where ranks run: here, where agents are, where a job puts them
    )
    nodes: Annotated[int, Field(ge=1)] = 1  # machines with an agent, each for as many ranks
    listen: Dialled | None = None  # host:port at which the site's agents find the head
    node_wait: Annotated[float, Field(ge=0)] = 60.0  # seconds that a missing node is waited for
    backend: Literal["auto", "gloo", "nccl"] = "auto"  # of their collectives; "auto": nccl on CUDA, else gloo
    heartbeat: Annotated[float, Field(ge=1)] = 6.0  # seconds of silence after which a rank counts as hung
    start_timeout: Annotated[float, Field(ge=1)] = 600.0  # seconds within which all ranks must be ready
    collective_timeout: Annotated[float, Field(ge=1)] = 600.0  # seconds that a rank waits for the others in a step
    max_restarts: Annotated[int, Field(ge=0)] = 2  # of the ranks, for one plan
    checkpoint_interval: Annotated[float, Field(ge=0)] = 30.0  # seconds of training that a restart may cost; 0: all

    @model_validator(mode="after")
    def _a_device_each(self) -> Self:
        if self.procs % self.nodes:
            raise ValueError(f"procs = {self.procs} over nodes = {self.nodes}; make it a multiple: each has as many")
        if self.devices and len(self.devices) != (each := self.procs // self.nodes):
            raise ValueError(f"devices names {len(self.devices)}, and a machine has {each} ranks; name one for each")
        if self.devices and self.device != "auto":
            raise ValueError("device and devices; remove one of them")
        if self.procs > 1 and self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f'device = "{self.device}" for {self.procs} processes; name one for each in devices')
        return self

    @model_validator(mode="after")
    def _for_as_many(self) -> Self:
        self.degrees(self.procs)
        return self

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.mode != "local" and self.listen is None:
            raise ValueError(
                f'mode = "{self.mode}" without listen; give host:port of this machine, e.g. "10.0.0.5:7443"'
            )
        if self.mode == "local" and (self.listen is not None or self.nodes > 1):
            raise ValueError('nodes and listen are for mode = "agents" or "slurm"; set it, or remove them')
        return self


class BaseFolderTable(Table):
    """[base]: where the site keeps the weights that adapters stand on. What they must be, the app's [base] says."""

    folder: str  # of safetensors files, relative to site.toml


class PolicyTable(Table):
    """[policy]: what may leave the site. Nothing is allowed that does not stand there, whatever a server says."""

    allow_unprotected: bool = False  # let the server see this site's own update, where secure aggregation is off
    min_sites: Annotated[int, Field(ge=LEAST_SITES)] = LEAST_SITES  # of a sum that this site's update is in
    allow_two_sites: bool = False  # take part in a consortium of two: the other has this site's update by subtraction
    max_clip: Annotated[float, Field(gt=0)] | None = None  # the most that [privacy] clip may be, for any part
    min_ring_bits: Literal[32, 24, 20, 16] = 16  # the least that [privacy] ring_bits may be
    trust_server_noise: bool = True  # take part where only the server adds the noise that protects a site as a whole

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        if self.allow_two_sites and self.min_sites > LEAST_SITES:
            raise ValueError(f"allow_two_sites = true and min_sites = {self.min_sites}; remove one of them")
        return self


class BudgetTable(Table):
    """[budget]: what may be learnt of this site's rows, by all runs together.

    With it nothing leaves that was not trained under differential privacy. Without it what is spent is entered, and no
    run refused for it.
    """

    unit: Literal["record", "group", "site"] = "record"  # who is protected; plans that protect another are refused
    epsilon: Annotated[float, Field(gt=0)]  # at most
    delta: Annotated[float, Field(gt=0, lt=1)]
    dataset: Annotated[Name, Field(description=A_NAME)] = "main"  # the rows' name: another one has a budget of its own
    allow_repeats: bool = False  # take each row for a person of its own although an id says that some are one person's


@dataclass(frozen=True)
class SiteFile:
    """The checked tables of a site.toml."""

    folder: Path  # what paths in it are relative to
    site: SiteTable
    network: NetworkTable
    apps: AppsTable
    bounds: BoundsTable
    data: DataTable | None  # None: there are no rows but those that the app's own code finds
    base: BaseFolderTable | None  # None: the site keeps none
    training: SiteTrainingTable
    slurm: SlurmTable  # of [training] mode = "slurm"
    policy: PolicyTable
    budget: BudgetTable | None  # None: no limit
    flower: FlowerTable


TABLES = {
    "site": SiteTable,
    "network": NetworkTable,
    "apps": AppsTable,
    "bounds": BoundsTable,
    "data": DataTable,
    "base": BaseFolderTable,
    "training": SiteTrainingTable,
    "slurm": SlurmTable,
    "policy": PolicyTable,
    "budget": BudgetTable,
    "flower": FlowerTable,
}


def load_site_file(path: Path) -> SiteFile:
    """Reads and checks a site.toml.

    Raises:
        UserError: a line a problem, in the order of the file.
    """
    tables = checked(document := Document(path), TABLES, needed={"site"})
    file = SiteFile(folder=path.parent, **{"data": None, "base": None, "budget": None, **tables})
    if "slurm" in document.tables and file.training.mode != "slurm":
        raise UserError(f'{path.name} [slurm]: is for [training] mode = "slurm"; set it, or remove the table')
    return file
