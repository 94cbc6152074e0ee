"""Checkpoints of a run: whole or not there, whenever the process is killed.

A round is two files, `round-000005.safetensors` and `round-000005.json`. The JSON is written last, holds the digests of
the tensor file and of itself, and is the commit: what no JSON names has not happened. The best model so far is a tensor
file of its own, which becomes the run's best with the next round that is saved.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.records import ServerState

FORMAT = 1
SHARED, OWN = "shared.", "own."  # before the names of a state's further vectors
_NAME = r"(round-\d{6,}|best-[0-9a-f]{8})"
_OURS = re.compile(rf"{_NAME}\.safetensors|\.{_NAME}\..*\.tmp")  # tensor files, and what was to become a file
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Best:
    """The best model so far: the round that made it, and its value of the monitored metric."""

    round: int
    value: float


@dataclass(frozen=True)
class Progress:
    """What a run must remember besides the model; all of it is plain JSON."""

    round: int = 0  # committed rounds
    best: Best | None = None
    since_best: int = 0  # committed rounds without a better model
    void_in_a_row: int = 0
    memory: Mapping[str, str] = field(default_factory=dict)  # site -> version of its memory

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "best": self.best and vars(self.best), "memory": dict(self.memory)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """What `plain` gave."""
        return cls(**{**plain, "best": plain["best"] and Best(**plain["best"])})


class Keeper(Protocol):
    """Keeps a run's rounds and its best model; see `Checkpoints`."""

    def save(self, state: ServerState, progress: Progress) -> None:
        """Commits a round."""
        ...

    def save_best(self, state: ServerState) -> None:
        """Keeps a model as the best so far."""
        ...

    def load_best(self) -> ServerState:
        """The best model."""
        ...


class BestInRam:
    """For a run that nobody resumes: the best model, in memory."""

    def save(self, state: ServerState, progress: Progress) -> None:
        """Nothing is kept of a round."""

    def save_best(self, state: ServerState) -> None:
        """See Keeper."""
        self._best = state

    def load_best(self) -> ServerState:
        """See Keeper."""
        return self._best


class Checkpoints:
    """The checkpoints of one run in one folder, for one writer at a time (see `RunLock`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._best: dict[str, str] | None = None  # file and sha256 of the best model
        self._knows = False  # whether that is what the newest record says, or newer

    def save(self, state: ServerState, progress: Progress) -> None:
        """Commits a round: durable when this returns. Of the rounds before it, only the newest is kept.

        Raises:
            UserError: the folder cannot be written, or the disk is full.
        """
        with _writing(self.folder):
            best = self._known_best()
            tensors = self._write(state, f"round-{progress.round:06d}.safetensors")
            record = {"format": FORMAT, "tensors": tensors, "best": best, "progress": progress.plain()}
            sealed = {**record, "sha256": _seal(record)}
            write_atomically(self._json(progress.round), json.dumps(sealed).encode())
            self._tidy(progress.round)

    def load(self) -> tuple[ServerState, Progress] | None:
        """The newest round that is whole; None where none was ever committed. A damaged one is logged and passed over.

        The tensors are mapped from the file and are read when they are used; writing to them leaves the file alone.

        Raises:
            UserError: rounds were committed and none of them is whole.
        """
        rounds = self._rounds()
        for number in rounds:
            try:
                record = self._record(number)
                state = self._read(record["tensors"])
            except _Damaged as damage:
                _log.warning("checkpoint of round %d is passed over, it is damaged: %s", number, damage)
            else:
                self._best, self._knows = record["best"], True
                return state, Progress.of(record["progress"])
        if rounds:
            raise UserError(f"{self.folder}: no checkpoint in it is whole; restore the folder or start a new run")
        return None

    def save_best(self, state: ServerState) -> None:
        """Keeps a model as the best so far; the next `save` makes it the one that a resumed run finds.

        Raises:
            UserError: the folder cannot be written, or the disk is full.
        """
        with _writing(self.folder):
            self._best, self._knows = self._write(state, f"best-{secrets.token_hex(4)}.safetensors"), True

    def load_best(self) -> ServerState:
        """The best model.

        Raises:
            UserError: none was kept, or it is damaged.
        """
        best = self._known_best()
        if best is None:
            raise UserError(f'{self.folder}: no best model was kept; set keep = "best" in [rounds] of a new run')
        try:
            return self._read(best)
        except _Damaged as damage:
            raise UserError(f"{self.folder}: the best model is damaged, restore the folder: {damage}") from damage

    def _json(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.json"

    def _rounds(self) -> list[int]:
        """The committed rounds that are still here, newest first."""
        names = (re.fullmatch(r"round-(\d+)\.json", path.name) for path in self.folder.glob("round-*.json"))
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def _record(self, number: int) -> dict[str, Any]:
        path = self._json(number)
        try:
            record: dict[str, Any] = json.loads(path.read_bytes())
            seal = record.pop("sha256")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _Damaged(f"{path.name} cannot be read ({error})") from error
        if seal != _seal(record):
            raise _Damaged(f"{path.name} has changed since it was written")
        if record["format"] != FORMAT:
            raise _Damaged(f"{path.name} has format {record['format']}, which another version of Hansa wrote")
        return record

    def _records(self) -> Iterator[dict[str, Any]]:
        """The records of rounds that can be read, newest first."""
        for number in self._rounds():
            with suppress(_Damaged):
                yield self._record(number)

    def _known_best(self) -> dict[str, str] | None:
        if not self._knows:
            newest = next(self._records(), None)
            self._best, self._knows = newest and newest["best"], True
        return self._best

    def _write(self, state: ServerState, name: str) -> dict[str, str]:
        """Writes a tensor file; its name and digest, as a record holds them. Its name is synced with the record's."""
        temporary = self.folder / f".{name}.tmp"
        save_file(_tensors(state), temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(temporary, self.folder / name)
        return {"file": name, "sha256": digest}

    def _read(self, written: Mapping[str, str]) -> ServerState:
        path = self.folder / written["file"]
        try:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _Damaged(f"{path.name} cannot be read ({error.strerror})") from error
        if digest != written["sha256"]:
            raise _Damaged(f"{path.name} has changed since it was written")
        tensors = load_file(path)
        params, counters = tensors.pop("params"), tensors.pop("counters")
        shared, own = (
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            for prefix in (SHARED, OWN)
        )
        return ServerState(params, counters, shared, own)

    def _tidy(self, newest: int) -> None:
        """Removes the rounds before the newest two, and files that no round names, such as a killed writer leaves."""
        for number in [n for n in self._rounds() if n < newest][1:]:
            self._json(number).unlink()
        named = {written["file"] for r in self._records() for written in (r["tensors"], r["best"]) if written}
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in named:
                path.unlink()


class RunLock:
    """Holds a run's folder for this process while the block lasts; the lock goes with the process, even a killed one.

    Raises:
        UserError: another process holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        with _writing(self.folder):
            self._file = open(self.folder / "lock", "a+")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise UserError(
                    f"run {self.folder.name} is in use by another process; wait until it ends, or end it"
                ) from None
        # A forked worker that outlives a killed server must not go on holding the run.
        os.register_at_fork(after_in_child=self._file.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _Damaged(Exception):
    """A checkpoint that is not what was written."""


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Makes the folder, and tells in one line why it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written ({error}); free disk space or mend the permissions") from error


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def _tensors(state: ServerState) -> dict[str, Tensor]:
    """The state's tensors by name; what shares memory is copied apart, for safetensors stores no views."""
    tensors = {"params": state.params, "counters": state.counters}
    tensors |= {
        f"{prefix}{n}": t for prefix, more in ((SHARED, state.shared), (OWN, state.own)) for n, t in more.items()
    }
    taken = set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone().contiguous() if memory in taken else tensor.contiguous()
        taken.add(memory)
    return tensors
