"""Hansa: one federation, written once, simulated on one machine or run on real sites.

Names are loaded when they are first used, so that `import hansa` costs nothing and imports no torch.
"""

from typing import TYPE_CHECKING

__all__ = [
    "FROM_TRAIN",
    "Metrics",
    "RunFailed",
    "Site",
    "Strategy",
    "Task",
    "UserError",
    "__version__",
    "simulate",
]

if TYPE_CHECKING:
    from hansa.errors import RunFailed, UserError
    from hansa.metrics import Metrics
    from hansa.task import FROM_TRAIN, Site, Task
    from simulations.api import simulate
    from strategies.base import Strategy

    __version__: str

else:  # hidden from type checkers, for which a module with `__getattr__` has every name
    _HOMES = {
        "FROM_TRAIN": "hansa.task",
        "Metrics": "hansa.metrics",
        "RunFailed": "hansa.errors",
        "Site": "hansa.task",
        "Task": "hansa.task",
        "UserError": "hansa.errors",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = _load(name)
        return value

    def __dir__() -> list[str]:
        return __all__

    def _load(name: str) -> object:
        """From hansa itself, or from a package above it, which registers it in the entry-point group `hansa.public`."""
        from importlib import import_module, metadata

        if name == "__version__":
            return metadata.version("hansa")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        (point,) = metadata.distribution("hansa").entry_points.select(group="hansa.public", name=name)
        return point.load()
