"""What a site keeps for itself between rounds: control variates, personal models, local layers.

Memory is versioned. Training stages a new version; the next plan names the version that counts, which is the staged
one only if that round was committed with this site in it. The version that training started from is kept until then.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save
from torch import Tensor

from hansa.errors import UserError
from hansa.files import write_atomically


class MemoryStore(Protocol):
    """Keeps one site's memory."""

    def load(self, version: str | None) -> Mapping[str, Tensor]:
        """The memory of a version; nothing for None.

        Raises:
            UserError: the version is not here (any more).
        """
        ...

    def stage(self, version: str, memory: Mapping[str, Tensor], base: str | None) -> None:
        """Keeps a new version, made from `base`; all others are forgotten."""
        ...


class MemoryInRam:
    """Memory that ends with the process."""

    def __init__(self) -> None:
        self._versions: dict[str, Mapping[str, Tensor]] = {}

    def load(self, version: str | None) -> Mapping[str, Tensor]:
        """See MemoryStore."""
        if version is None:
            return {}
        if version not in self._versions:
            raise _lost(version)
        return self._versions[version]

    def stage(self, version: str, memory: Mapping[str, Tensor], base: str | None) -> None:
        """See MemoryStore."""
        kept = {base: self._versions[base]} if base is not None else {}
        self._versions = {**kept, version: memory}


class MemoryOnDisk:
    """Memory in a folder, a safetensors file a version, written whole or not at all.

    Args:
        folder: of this site's.
        durable: False for memory that nobody keeps: it need not outlive the machine.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder, self.durable = folder, durable

    def load(self, version: str | None) -> Mapping[str, Tensor]:
        """See MemoryStore."""
        if version is None:
            return {}
        path = self._path(version)
        if not path.is_file():
            raise _lost(version)
        memory: dict[str, Tensor] = load_file(path)
        return memory

    def stage(self, version: str, memory: Mapping[str, Tensor], base: str | None) -> None:
        """See MemoryStore."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = save({name: t.contiguous() for name, t in memory.items()})
        if self.durable:
            write_atomically(self._path(version), data)
        else:
            self._path(version).write_bytes(data)
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in (version, base):
                path.unlink()

    def _path(self, version: str) -> Path:
        if not re.fullmatch(r"[0-9a-f-]+", version):
            raise UserError(f"memory version {version!r}: not a version")
        return self.folder / f"{version}.safetensors"


def _lost(version: str) -> UserError:
    return UserError(f"this site's memory of version {version} is lost; it cannot take part in a run that goes on")
