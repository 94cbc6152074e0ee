"""A site's commands."""

from pathlib import Path
from typing import Annotated

import typer


def digest(
    app: Annotated[Path, typer.Argument(help="The app's folder: task.py, federation.toml and what else it has.")],
    files: Annotated[bool, typer.Option("--files", help="Name the files first that may run or be read there.")] = False,
) -> None:
    """Print an app's digest, by which a site allows it in its site.toml."""
    from hansa.appfiles import FEDERATION, app_digest, app_files

    found = app_files(app)
    for name in sorted(found) if files else []:
        typer.echo(f"{name}: {len(found[name]):,} bytes{', not in the digest' if name == FEDERATION else ''}")
    typer.echo(app_digest(found))


HERE = Path()

site = typer.Typer(help="A site of a consortium.", rich_markup_mode=None)


@site.callback()
def _commands() -> None:
    """Makes `up` a command of its own, and not all there is."""


@site.command("up")
def site_up(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Run the site: until Ctrl-C or SIGTERM."""
    from clients.up import up

    up(folder, typer.echo)


@site.command("join")
def site_join(
    kit: Annotated[Path, typer.Argument(help="The invitation kit that the consortium has sent.")],
    folder: Annotated[
        Path | None, typer.Argument(help="The site's new folder. [default: one of the site's name, here]")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="A proxy on the way to the server: http://user:password@proxy:3128")
    ] = None,
) -> None:
    """Join a consortium: make the site's keys, ask, and wait until it has approved. Ctrl-C is safe."""
    from clients.joining import join

    join(kit, folder, proxy, typer.echo)


@site.command("renew")
def site_renew(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Ask for the site's next certificate, and wait until it was granted. Ctrl-C is safe."""
    from clients.renewal import renew

    renew(folder, typer.echo)


@site.command("doctor")
def site_doctor(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SITE", help="The site's folder.")] = HERE,
) -> None:
    """Check all that a site needs: a line each, with the mend. Exit code 1 if something must be mended."""
    from clients.doctor import examine

    if not examine(folder, typer.echo):
        raise typer.Exit(1)
