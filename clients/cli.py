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


HERE = Path()

site = typer.Typer(help="A site of a consortium.", rich_markup_mode=None)


@site.callback()
def _commands() -> None:
    """Makes `up` a command of its own, and not all there is."""


@site.command("up")
def site_up(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="What hansa provision made for the site.")] = HERE,
) -> None:
    """Run the site: until Ctrl-C or SIGTERM."""
    from clients.up import up

    up(folder, typer.echo)
