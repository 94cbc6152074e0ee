"""Checkpoints of a run: whole or not there, whenever the process is killed.

A round is one file, `round-000005.safetensors`: the state's tensors, and in the metadata what a run must remember
besides, with a digest of it all. That it has its name is the commit. The best model so far is a file of its own, which
becomes the run's best with the next round that is saved.
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

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hansa.codec import view
from hansa.errors import UserError
from hansa.files import sync_folder
from hansa.records import ServerState

FORMAT = "1"
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
    void: int = 0  # rounds that did not count, in all
    memory: Mapping[str, str] = field(default_factory=dict)  # site -> version of its memory
    clip: float | None = None  # of the next round's updates, where site-level privacy adapts it

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
        self._best: _Best = None
        self._knows = False  # whether that is what the newest round says, or newer
        self._kept: dict[int, str | None] | None = None  # round -> the file of its best model; None: not swept yet

    def save(self, state: ServerState, progress: Progress) -> None:
        """Commits a round: durable when this returns. Of the rounds before it, only the newest is kept.

        Raises:
            UserError: the folder cannot be written, or the disk is full.
        """
        with _writing(self.folder):
            best = self._known_best()
            said = {"progress": json.dumps(progress.plain()), "best": json.dumps(best)}
            self._write(state, self._file(progress.round).name, said)
            sync_folder(self.folder)
            self._tidy(progress.round, best["file"] if best else None)

    def load(self) -> tuple[ServerState, Progress] | None:
        """The newest round that is whole; None where none was ever committed. A damaged one is logged and passed over.

        The tensors are mapped from the file and are read when they are used; writing to them leaves the file alone.

        Raises:
            UserError: rounds were committed and none of them is whole.
        """
        rounds = self._rounds()
        for number in rounds:
            try:
                said, state = _read(self._file(number))
            except _Damaged as damage:
                _log.warning("checkpoint of round %d is passed over, it is damaged: %s", number, damage)
            else:
                self._best, self._knows = json.loads(said["best"]), True
                return state, Progress.of(json.loads(said["progress"]))
        if rounds:
            raise UserError(f"{self.folder}: no checkpoint in it is whole; restore the folder or start a new run")
        return None

    def save_best(self, state: ServerState) -> None:
        """Keeps a model as the best so far; the next `save` makes it the one that a resumed run finds.

        Raises:
            UserError: the folder cannot be written, or the disk is full.
        """
        name = f"best-{secrets.token_hex(4)}.safetensors"
        with _writing(self.folder):
            self._best, self._knows = {"file": name, "digest": self._write(state, name, {})}, True

    def load_best(self) -> ServerState:
        """The best model.

        Raises:
            UserError: none was kept, or it is damaged.
        """
        best = self._known_best()
        if best is None:
            raise UserError(f'{self.folder}: no best model was kept; set keep = "best" in [rounds] of a new run')
        try:
            said, state = _read(self.folder / best["file"])
            if said["digest"] != best["digest"]:
                raise _Damaged(f"{best['file']} is another one")
            return state
        except _Damaged as damage:
            raise UserError(f"{self.folder}: the best model is damaged, restore the folder: {damage}") from damage

    def _file(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.safetensors"

    def _rounds(self) -> list[int]:
        """The committed rounds that are still here, newest first."""
        names = (re.fullmatch(r"round-(\d+)\.safetensors", path.name) for path in self.folder.glob("round-*"))
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def _known_best(self) -> "_Best":
        if not self._knows:
            for number in self._rounds():
                with suppress(_Damaged):
                    self._best = json.loads(_read(self._file(number))[0]["best"])
                    break
            self._knows = True
        return self._best

    def _write(self, state: ServerState, name: str, said: Mapping[str, str]) -> str:
        """Writes a file; its digest. Its name is not synced."""
        tensors, said = _tensors(state), {"format": FORMAT, **said}
        temporary, digest = self.folder / f".{name}.tmp", _digest(said, tensors)
        save_file(tensors, temporary, {**said, "digest": digest})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / name)
        return digest

    def _tidy(self, newest: int, best: str | None) -> None:
        """Removes the rounds before the newest two, and best models that none of the two names."""
        swept = self._kept is not None
        kept = self._kept if self._kept is not None else {n: self._best_of(n) for n in self._rounds() if n < newest}
        files = {self._file(n).name for n in kept} | {name for name in kept.values() if name}
        older = max((n for n in kept if n < newest), default=None)
        self._kept = {newest: best} if older is None else {older: kept[older], newest: best}
        named = {self._file(n).name for n in self._kept} | set(self._kept.values())
        if not swept:  # what a killed writer left, too
            files = {path.name for path in self.folder.iterdir() if _OURS.fullmatch(path.name)}
        for name in files - named:
            (self.folder / name).unlink(missing_ok=True)

    def _best_of(self, number: int) -> str | None:
        """The file of the best model that a round names."""
        with suppress(_Damaged):
            best = json.loads(_read(self._file(number))[0]["best"])
            return best and str(best["file"])
        return None


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


_Best = dict[str, str] | None  # file and digest of the best model


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


def _read(path: Path) -> tuple[dict[str, str], ServerState]:
    """What a file says besides the state, and the state, whose tensors are mapped."""
    try:
        with safe_open(path, "pt") as file:
            said = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise _Damaged(f"{path.name} cannot be read ({error})") from error
    digest = said.pop("digest", "")
    if digest != _digest(said, tensors):
        raise _Damaged(f"{path.name} has changed since it was written")
    if said["format"] != FORMAT:
        raise _Damaged(f"{path.name} has format {said['format']}, which another version of Hansa wrote")
    params, counters = tensors.pop("params"), tensors.pop("counters")
    shared, own = (
        {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        for prefix in (SHARED, OWN)
    )
    return {**said, "digest": digest}, ServerState(params, counters, shared, own)


def _digest(said: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all that a file holds."""
    heads = {name: [str(tensor.dtype), *tensor.shape] for name, tensor in sorted(tensors.items())}
    sha = hashlib.sha256(json.dumps([dict(sorted(said.items())), heads]).encode())
    for name in heads:
        sha.update(view(tensors[name]))
    return sha.hexdigest()


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
