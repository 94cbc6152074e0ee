"""Loads a class from a Python file of the user's: `task.py:Heart`."""

import hashlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import invalidate_caches
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

from hansa.errors import UserError

T = TypeVar("T")


def load_class(spec: str, folder: Path, base: type[T], what: str) -> type[T]:
    """The class that `file.py:Class` names.

    The file's folder is importable while it loads, for its siblings. Its module stays in `sys.modules` under a name
    made of path and contents, so that a file loaded twice gives one class, and an edited one a new class.

    Args:
        spec: `file.py:Class`.
        folder: what the path is relative to.
        base: what the class must be a subclass of.
        what: what the class is to be, as the messages begin, e.g. "task".

    Raises:
        UserError: no such file or class, not a subclass of base, or a file that cannot be imported.
    """
    file, colon, name = spec.rpartition(":")
    if not (colon and file.endswith(".py") and name.isidentifier()):
        raise UserError(f'{what}: "{spec}" is not of the form file.py:Class, e.g. task.py:Heart')
    path = (folder / file).resolve()
    if not path.is_file():
        raise UserError(f'{what}: no file "{file}" in {folder.resolve()}{_near_file(path)}')
    module = _load(path, what)
    found = vars(module).get(name)
    if found is None:
        raise UserError(f"{what}: {file} has no class {name}{_near_class(name, module, base)}")
    if not (isinstance(found, type) and issubclass(found, base) and found is not base):
        raise UserError(f"{what}: {name} in {file} is not a {base.__name__}; write class {name}({base.__name__})")
    return found


def loaded() -> tuple[Path, ...]:
    """The files from which classes were loaded, in their order: another process that loads them has the same ones."""
    return tuple(loaded_as().values())


def loaded_as() -> dict[str, Path]:
    """Those files by the names of their modules."""
    modules = [module for module in sys.modules.values() if isinstance(module, ModuleType)]
    loaders = [vars(module).get("__loader__") for module in modules]
    return {loader.name: Path(loader.path) for loader in loaders if isinstance(loader, _Loader)}


def load_again(files: Iterable[Path]) -> None:
    """Loads files that another process has loaded, so that its objects can be unpickled here."""
    for path in files:
        _load(path, "task")


def load_as(name: str, path: Path) -> None:
    """Loads a file, or a copy of it, under the name of its module in another process."""
    _load(path, "task", name)


def made(kind: type[T], what: str) -> T:
    """An object of a user's class.

    Raises:
        UserError: it cannot be made without arguments.
    """
    try:
        return kind()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{what}: {kind.__name__}() fails: {reason}; let it be made without arguments") from error


class _Loader(SourceFileLoader):
    """Compiles what stands in the file: a cached file may be older than an edit within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load(path: Path, what: str, name: str | None = None) -> ModuleType:
    name = name or f"{path.stem}_{hashlib.sha256(bytes(path) + path.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Loader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        with _importable(path.parent):
            loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{what}: {_line(error, path)}: {reason}") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Puts a folder first on the path, and forgets modules of other such folders that bear its files' names."""
    names = {child.stem for child in folder.iterdir() if child.suffix == ".py" or child.is_dir()}
    homes = {name: _home(sys.modules[name]) for name in names & sys.modules.keys()}
    others = {name for name, home in homes.items() if home not in (None, folder) and str(home) not in sys.path}
    for name in [n for n in sys.modules if n.partition(".")[0] in others]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(str(folder))


def _home(module: ModuleType) -> Path | None:
    """The folder from which a top-level module was imported."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file)
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _line(error: BaseException, path: Path) -> str:
    """The innermost line of the user's own code: file:line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == path.parent]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else path.name


def _near_file(path: Path) -> str:
    files = sorted(p.name for p in path.parent.glob("*.py") if p.is_file())
    return _near(path.name, files, "there is no Python file in it")


def _near_class(name: str, module: ModuleType, base: type) -> str:
    own = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, base) and v is not base]
    return _near(name, own, f"write class {name}({base.__name__})")


def _near(name: str, known: list[str], otherwise: str) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {near[0]}?" if near else f"; {otherwise}"
