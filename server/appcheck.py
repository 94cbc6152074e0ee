"""What an app needs, besides being right, to be run by Flower."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.appfiles import FEDERATION, code_elsewhere
from hansa.errors import UserError

RUN_KEYS = ("hansa-run", "hansa-epoch")


def check_app(files: Mapping[str, bytes], app: Path) -> None:
    """Whether an app's pyproject.toml says what Flower and Hansa need of it.

    Raises:
        UserError: it does not.
    """
    if "pyproject.toml" not in files:
        raise UserError(f"{app}: no pyproject.toml, by which Flower knows an app; copy that of an example")
    try:
        settings = tomllib.loads(files["pyproject.toml"].decode())
    except ValueError as error:
        raise UserError(f"{app / 'pyproject.toml'}: not TOML: {error}") from error
    except RecursionError:
        raise UserError(f"{app / 'pyproject.toml'}: nested too deeply; mend it") from None
    flower = _table(settings, "tool", "flwr", "app")
    parts, keys = _table(flower, "components"), _table(flower, "config")
    wanted = {"serverapp": "server.app:app", "clientapp": "clients.app:app"}
    problems = [f'[tool.flwr.app.components]: write {k} = "{v}"' for k, v in wanted.items() if parts.get(k) != v]
    defaults = dict(zip(RUN_KEYS, ('""', "1"), strict=True))
    problems += [f"[tool.flwr.app.config]: write {k} = {v}" for k, v in defaults.items() if k not in keys]
    if problems:
        raise UserError(*(f"{app / 'pyproject.toml'} {problem}" for problem in problems))
    _check_code(files, app)


def _check_code(files: Mapping[str, bytes], app: Path) -> None:
    """What is allowed by the digest of an app's files is the code in these files, and no other."""
    try:
        tables = tomllib.loads(files.get(FEDERATION, b"").decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return  # whoever reads it says so
    if elsewhere := list(code_elsewhere(tables, files)):
        mend = "is no file of the app; put it into the app's folder, and give its path from there"
        raise UserError(*(f"{app / FEDERATION}: {text} {mend}" for text in elsewhere))


def _table(settings: Any, *path: str) -> Mapping[str, Any]:
    """A table within settings; an empty one where there is something else."""
    for key in path:
        settings = settings.get(key) if isinstance(settings, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}
