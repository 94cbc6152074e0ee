"""A site's commands."""

from pathlib import Path
from typing import Annotated

import typer


def digest(
    app: Annotated[Path, typer.Argument(help="The app's folder: task.py, federation.toml and what else it has.")],
) -> None:
    """Print an app's digest, by which a site allows it in its site.toml."""
    from hansa.appfiles import app_digest, app_files

    typer.echo(app_digest(app_files(app)))
