"""A lock for each GPU of a machine: one rank at a time, whichever site, run or user it belongs to.

Two that share a GPU run out of its memory in the middle of a round, or hang in NCCL; so the second is refused at its
start. A lock is a file that is named by the GPU's UUID, which no CUDA_VISIBLE_DEVICES changes; the system lets go of it
when its process ends, however that comes. Machines and containers that do not share the folder do not see each other.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from hansa.errors import UserError

FOLDER = Path("/tmp/hansa-gpus")  # of the machine, not of a user: TMPDIR does not count
PATIENCE = 10.0  # seconds in which the loaders of a rank that was killed end, which may still hold its lock
LOOK = 0.1  # seconds
SHOWN = 200  # bytes of what a holder says of itself


class GpuLock:
    """Holds a GPU until it is released, or the process ends.

    Args:
        uuid: of the GPU.
        holder: who we are, as those read it who find the GPU taken.
        folder: of the locks.
        patience: seconds to wait for another to let go.

    Raises:
        UserError: another holds it, or no lock can be had.
    """

    def __init__(self, uuid: str, holder: str, folder: Path = FOLDER, patience: float = PATIENCE) -> None:
        self.uuid, path = uuid, folder / f"{uuid}.lock"
        try:
            self._file = _opened(path)
        except OSError as error:
            raise UserError(f"GPU {uuid}: {path}: {error.strerror}; make {folder} a folder for all users") from error
        deadline = time.monotonic() + patience
        while not self._taken():
            if time.monotonic() >= deadline:
                other = self._says()
                os.close(self._file)
                mend = "wait until that ends, or name other GPUs in site.toml [training] device or devices"
                raise UserError(f"GPU {uuid} is in use by {other}; {mend}")
            time.sleep(LOOK)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, holder.encode(), 0)
        os.register_at_fork(after_in_child=self.release)  # a loader that outlives its rank must not hold the GPU

    def release(self) -> None:
        """Lets go of it, or of this process's part in it."""
        with suppress(OSError):
            os.close(self._file)
        self._file = -1

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _says(self) -> str:
        """What the holder says of itself: any user of the machine may have written it."""
        said = os.pread(self._file, SHOWN, 0).decode(errors="replace")
        return "".join(char if char.isprintable() else "?" for char in said) or "another process"


def _opened(path: Path) -> int:
    """The lock's file, for all users to lock and to write; links that another user may have laid are not followed."""
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        while True:
            # Asked to create, the system may refuse another user's file in such a folder; so that is asked last.
            with suppress(FileNotFoundError):
                return os.open(path.name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
            with suppress(FileExistsError):
                file = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
                os.fchmod(file, 0o666)
                return file
    finally:
        os.close(folder)
