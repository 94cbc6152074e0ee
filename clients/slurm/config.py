"""[slurm] of site.toml: what a run's job asks of the cluster. Each value stands in a script, so none is free text."""

from typing import Annotated

from pydantic import AfterValidator, Field

from hansa.tables import Table
from hansa.words import shown

# Options of sbatch(1) that would change what is run, as whom, on how much, or where it writes; some have keys here.
OURS = (
    *(
        "account",
        "array",
        "chdir",
        "clusters",
        "error",
        "export",
        "export-file",
        "get-user-env",
        "gid",
        "help",
        "input",
    ),
    *("job-name", "nodes", "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "partition"),
    *("quiet", "requeue", "signal", "test-only", "time", "uid", "usage", "version", "wait", "wrap"),
)

Word = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,127}$",
        description="letters, digits and _ . , : + -, as Slurm names it",
    ),
]


def _option(value: str) -> str:
    name = value[2:].partition("=")[0]
    # getopt_long(3) takes the beginning of an option's name for all of it.
    if any(one.startswith(name) for one in OURS):
        raise ValueError(f"Hansa sets this option itself, by a key of its own or for good; remove {shown(value)}")
    return value


Option = Annotated[
    str,
    Field(
        pattern=r"^--[a-z][a-z-]{1,40}(=[A-Za-z0-9_.,:/@+%*&|()\[\]-]{1,200})?$",
        description='a long option of sbatch without spaces and quotes, e.g. "--qos=normal"',
    ),
    AfterValidator(_option),
]


class SlurmTable(Table):
    """[slurm]: the job that a run's agents are in. Nodes and ranks stand in [training]."""

    partition: Word | None = None  # None: the cluster's default
    account: Word | None = None  # None: the user's default
    gpus_per_node: Word | None = None  # "4" or "a100:4"; None: as options say
    time: Annotated[
        str,
        Field(pattern=r"^(\d{1,3}-\d{1,2}(:\d{2}){0,2}|\d{1,6}(:\d{2}){0,2})$", description='"D-HH:MM:SS" or the like'),
    ] = "1-00:00:00"  # limit of one job; a run that takes longer is requeued
    options: tuple[Option, ...] = ()  # more of sbatch's
    template: str | None = None  # a batch script of the site's own, relative to site.toml; None: the one of Hansa
    signal: Annotated[int, Field(ge=10, le=65535)] = 60  # seconds before the limit at which the job is requeued
    poll: Annotated[float, Field(ge=1)] = 30.0  # seconds between two looks at the queue
    max_wait: Annotated[float, Field(gt=0)] = 86_400.0  # seconds in the queue after which it is given up
    max_restarts: Annotated[int, Field(ge=0)] = 10  # jobs that may follow a run's first
    patience: Annotated[float, Field(ge=5)] = 60.0  # seconds without the head after which agents, and so the job, end
