"""What a server folder remembers of each run that was given to Flower, so that a dead one is noticed and started again.

Hansa's run outlives Flower's: each start is a new Flower run under the next epoch. In runs/RUN/ stand app.zip, the app
as it was given; launch.json, the newest start; process.json, the process of a start, which it writes itself.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from signal import Signals
from typing import Annotated

from pydantic import Field, TypeAdapter

from hansa.files import write_atomically
from hansa.processes import only_one, send, started

APP = "app.zip"
_LAUNCH, _PROCESS = "launch.json", "process.json"
_FlowerRun = Annotated[int, Field(ge=0, lt=2**64)]


@dataclass(frozen=True)
class Launch:
    """The newest start of a run."""

    epoch: Annotated[int, Field(ge=0, lt=2**31)]  # from 1
    flower_run: _FlowerRun | None  # Flower's id of it; while it is being started, of the one before
    starting: bool = False
    wanted: bool = True  # whether it is to be started again if it dies


_LAUNCHES = TypeAdapter(Launch)
_PROCESSES = TypeAdapter(tuple[int, Annotated[int, Field(ge=1, lt=2**31)], str])  # epoch, process id, its beginning


def new_run(name: str) -> str:
    """A new run's id: the federation's name (40 letters of it), the time, a few letters against clashes."""
    return f"{name[:40]}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def hints(run: str) -> str:
    """What may be done with a run that goes on."""
    return f"follow it with hansa logs {run}, end it with hansa stop {run}"


def write_launch(run: Path, launch: Launch) -> None:
    """Notes a start in a run's folder."""
    write_atomically(run / _LAUNCH, json.dumps(asdict(launch)).encode())


def read_launch(run: Path) -> Launch | None:
    """The newest start of a run; None if it was never given to Flower, or what says so is damaged."""
    try:
        return _LAUNCHES.validate_json((run / _LAUNCH).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


@contextmanager
def launching(run: Path, patience: float = 5.0) -> Iterator[None]:
    """To be held by whoever starts or stops a run.

    Raises:
        UserError: another process does.
    """
    busy = f"run {run.name}: another process is starting or stopping it; see hansa status, and try again"
    with only_one(run / "launch.lock", busy, patience):
        yield


def wanted(runs: Path, damaged: Callable[[str], None] = lambda run: None) -> Iterator[tuple[str, Launch]]:
    """The runs that are to go on until they are done.

    Args:
        runs: the folder of runs.
        damaged: gets a run of which nobody can say that, since its launch.json is damaged.
    """
    for path in sorted(runs.glob(f"*/{_LAUNCH}")):
        launch = read_launch(path.parent)
        if launch is None:
            damaged(path.parent.name)
        elif launch.wanted:
            yield path.parent.name, launch


def announce(run: Path, epoch: int) -> None:
    """Called by the process that serves a run, when it begins: from now on its death is noticed at once.

    Args:
        run: the run's folder.
        epoch: of this start.
    """
    write_atomically(run / _PROCESS, json.dumps([epoch, os.getpid(), started(os.getpid())]).encode())


def served(run: Path, epoch: int) -> bool | None:
    """Whether the process that serves a start lives; None if it has not announced itself, or that is damaged."""
    if (process := _process(run, epoch)) is None:
        return None
    pid, since = process
    return started(pid) == since


def send_to_process(run: Path, epoch: int, number: Signals) -> None:
    """Sends a signal to the process that serves a start, if it lives."""
    if served(run, epoch) and (process := _process(run, epoch)):
        send(number, [process[0]])


def _process(run: Path, epoch: int) -> tuple[int, str] | None:
    try:
        of, pid, since = _PROCESSES.validate_json((run / _PROCESS).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None
    return (pid, since) if of == epoch else None
