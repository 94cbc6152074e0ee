"""An exception in the user's own code, told in one line; our own stay tracebacks."""

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hansa.errors import RunFailed, UserError
from hansa.task import Task

# What torch says, and how it is mended.
_MENDS = {
    "more than 1 value per channel": "set [training] drop_last = true and batch_size to 2 or more, for batch norm",
    "must have the same dtype": "give rows of the model's dtype, e.g. x.float()",
    "out of memory": "set a smaller [training] batch_size",
}

_BASE = Path(sys.modules[Task.__module__].__file__ or "")


@contextmanager
def own_code(*owners: type) -> Iterator[None]:
    """Tells what the code of the owners' files raises, or what torch raises beneath a task's default methods.

    Args:
        owners: classes that may be the user's: of a task, of a strategy.

    Raises:
        UserError: file, line, method and reason.
    """
    try:
        yield
    except (UserError, RunFailed):
        raise
    except Exception as error:
        where = _where(error, owners)
        if where is None:
            raise
        reason = _reason(error)
        mend = next((mend for said, mend in _MENDS.items() if said in reason), "correct it there")
        raise UserError(f"{where}: {reason}; {mend}") from error


def _where(error: Exception, owners: tuple[type, ...]) -> str | None:
    """The innermost frame that is the user's, or one of the base task's, whose rows and model are the user's."""
    own = [sys.modules.get(one.__module__) for one in owners if "." not in one.__module__]  # from a file, not a package
    folders = {Path(module.__file__).parent for module in own if module is not None and module.__file__}
    for path, line, method in reversed(_frames(error)):
        if folders.intersection(path.parents) and "site-packages" not in path.parts:
            return f"{path.name}:{line}, in {method}"
        if path == _BASE and hasattr(Task, method):
            return f"task {', '.join(one.__name__ for one in owners if issubclass(one, Task))}, in {method}"
    return "device" if isinstance(error, torch.OutOfMemoryError) else None


def _frames(error: Exception) -> list[tuple[Path, int, str]]:
    """From the outermost on; those of a process that loads rows stand as text in the error that it handed on."""
    frames = [(Path(f.filename), f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    told = re.findall(r'File "(.+)", line (\d+), in (\w+)', str(error)) if _is_handed_on(error) else []
    return frames + [(Path(file), int(line), method) for file, line, method in told]


def _reason(error: Exception) -> str:
    text = str(error).strip()
    if _is_handed_on(error):
        return text.splitlines()[-1]
    words = f"{type(error).__name__}: {' '.join(text.split())}"
    return words if len(words) <= 300 else f"{words[:300]}..."


def _is_handed_on(error: Exception) -> bool:
    return "in DataLoader worker process" in str(error)
