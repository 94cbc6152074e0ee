"""Finds a class by its name in the configuration: a built-in, an installed plugin's, or one in a file of the user's.

A built-in's file name is its name. Everything is imported by name at run time, so the ground knows nothing above it.
"""

import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from hansa.errors import UserError
from hansa.taskfile import load_class

T = TypeVar("T")

# kind (its entry-point group is hansa.<kind>) -> the package of its built-ins, and what one of them is called
KINDS = {
    "datasets": ("simulations.datasets", "data set"),
    "engines": ("simulations.engines", "engine"),
    "mechanisms": ("privacy.mechanisms", "mechanism"),
    "strategies": ("strategies", "strategy"),
}


def choose(kind: str, name: str, base: type[T], folder: Path = Path()) -> type[T]:
    """The class of a kind that a name means.

    Args:
        kind: one of KINDS.
        name: a built-in's file name, a name registered under `hansa.<kind>`, or `file.py:Class`.
        base: what the class must be a subclass of.
        folder: what the path in `file.py:Class` is relative to.

    Raises:
        UserError: no such name (the line lists what there is), a name that two distributions give, or one whose
            class cannot be loaded.
    """
    package, what = KINDS[kind]
    if ".py:" in name:
        return load_class(name, folder, base, what)
    builtins, plugins = _modules(package), registered(f"hansa.{kind}")
    own = _built_in(f"{package}.{name}", base) if name in builtins else None
    point = plugins.get(name)
    if own and point:
        raise UserError(_clash(what, name, "hansa", origin(point)))
    if point:
        return _plugin(point, base, what)
    if own:
        return own
    there = known(kind, base)
    near, listed = nearest(name, there, '"{}"'), ", ".join(sorted(there)) or "none"
    raise UserError(f'no {what} "{name}"{near} (there are: {listed})')


def known(kind: str, base: type[T]) -> list[str]:
    """The names of a kind: the built-ins', then those that are registered."""
    package, _ = KINDS[kind]
    own = [name for name in _modules(package) if _built_in(f"{package}.{name}", base)]
    return [*own, *registered(f"hansa.{kind}")]


def registered(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name.

    Raises:
        UserError: two distributions give one name.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point != (first := points.setdefault(point.name, point)):
            raise UserError(_clash(group, point.name, origin(first), origin(point)))
    return points


def load(point: EntryPoint, what: str) -> Any:
    """What an entry point names.

    Raises:
        UserError: it cannot be imported, e.g. because a package that it needs is not installed.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f'{what} "{point.name}" of {origin(point)} cannot be loaded: {reason}') from error


def origin(point: EntryPoint) -> str:
    """Which distribution registered an entry point, and what it names there."""
    return f"{point.dist.name if point.dist else 'an unknown one'} ({point.value})"


def nearest(name: str, known: Iterable[str], shown: str = "{}") -> str:
    """'; did you mean X?', or nothing where no known name is near."""
    return "".join(f"; did you mean {shown.format(near)}?" for near in get_close_matches(name, list(known), n=1))


def _clash(what: str, name: str, first: str, second: str) -> str:
    return f'{what} "{name}" is given by two installed distributions: {first} and {second}; uninstall one of them'


def _modules(package: str) -> list[str]:
    """The names of a package's public modules; none where there is no such package."""
    try:
        path = import_module(package).__path__
    except ModuleNotFoundError as error:
        if error.name and package.startswith(error.name):
            return []
        raise
    return [module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_")]


def _built_in(module: str, base: type[T]) -> type[T] | None:
    """The one class of a module that is one of the kind; None for a module that only helps, or holds the base."""
    found = [
        value
        for name, value in vars(import_module(module)).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
        if value.__module__ == module and not name.startswith("_")
    ]
    if len(found) > 1:
        raise TypeError(f"{module} defines {len(found)} classes of {base.__name__}; give each a file of its own")
    return found[0] if found else None


def _plugin(point: EntryPoint, base: type[T], what: str) -> type[T]:
    loaded = load(point, what)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise UserError(f'{what} "{point.name}" of {origin(point)} is not a subclass of {base.__name__}')
    return loaded
