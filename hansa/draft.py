"""A vector that lies in a file while it is filled: what is written to the one is in the other."""

import hashlib
import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

BOOT = Path("/proc/sys/kernel/random/boot_id")  # what a start of this machine's system is named by


@dataclass(frozen=True)
class Draft:
    """A file of float32 numbers, and the same numbers as a vector; processes of one machine may fill it together.

    Args:
        path: of the file.
        vector: [n] float32, mapped from it.
    """

    path: Path
    vector: Tensor

    @classmethod
    def make(cls, path: Path, size: int) -> Self:
        """A new file of so many zeros, in place of one that may be there.

        Raises:
            OSError: there is no room for it: once it is mapped, that would end the process that writes.
        """
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(file, 0, 4 * size)
        finally:
            os.close(file)
        return cls.open(path, size)

    @classmethod
    def open(cls, path: Path, size: int) -> Self:
        """A file that another process has made.

        Raises:
            OSError: there is none.
        """
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 4 * size)
        return cls(path, torch.frombuffer(memory, dtype=torch.float32))

    @staticmethod
    def mark(path: Path) -> bytes:
        """32 bytes, alike only for processes of one machine for which the path names one file that is there."""
        try:
            where = BOOT.read_bytes() + str(path.stat().st_ino).encode()
        except OSError:
            where = secrets.token_bytes(32)
        return hashlib.sha256(where).digest()

    def is_all_of(self, vector: Tensor) -> bool:
        """Whether a vector is this one, on the same memory and to the same end."""
        return vector.data_ptr() == self.vector.data_ptr() and vector.shape == self.vector.shape
