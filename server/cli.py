"""The server's commands."""

from pathlib import Path
from typing import Annotated

import typer


def provision(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder: a new one, or one made before.")],
    site: Annotated[list[str] | None, typer.Option(help="A site to add; repeatable.")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or IP address of the server; repeatable, sites dial the first. [default: 127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Where Flower listens at the server; sessions have the next. [default: 9092]")
    ] = None,
    consortium: Annotated[str | None, typer.Option(help="Its name. [default: the folder's]")] = None,
) -> None:
    """Make the certificates, keys and folders of a consortium, or add sites to it."""
    from datetime import UTC, datetime

    from server.provision import Founding, provision

    for line in provision(folder, site or [], Founding(consortium, tuple(host or ()), port), datetime.now(UTC)):
        typer.echo(line)


Server = Annotated[Path, typer.Option("--server", envvar="HANSA_SERVER", help="The server's folder.")]
HERE = Path()

server = typer.Typer(help="The server of a consortium.", rich_markup_mode=None)


@server.callback()
def _commands() -> None:
    """Makes `up` a command of its own, and not all there is."""


@server.command("up")
def server_up(
    folder: Annotated[Path, typer.Argument(envvar="HANSA_SERVER", help="What hansa provision made for it.")] = HERE,
) -> None:
    """Run the server: until Ctrl-C or SIGTERM."""
    from server.up import up

    up(folder, typer.echo)


def run(
    app: Annotated[Path | None, typer.Argument(help="The app's folder. [default: the present one]")] = None,
    server: Server = HERE,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run that was interrupted.")] = False,
    run: Annotated[str | None, typer.Option(help="The run's id: to name a new run, or the one to resume.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for its end.")] = False,
) -> None:
    """Run an app on the sites. Ctrl-C ends the report, not the run."""
    from rich.console import Console

    from hansa.errors import UserError
    from server import command

    if not resume:
        command.start(app or HERE, server, name=run, detach=detach, console=Console())
    elif app is None:
        command.resume(server, name=run, detach=detach, console=Console())
    else:
        raise UserError(f"{app}: a run goes on with the app that it began with; leave the folder out")


def status(server: Server = HERE) -> None:
    """Show the server, its sites and its runs."""
    from rich.console import Console

    from server import command

    command.status(server, Console())


def stop(run: Annotated[str, typer.Argument(help="The run's id.")], server: Server = HERE) -> None:
    """Stop a run; it can go on by --resume."""
    from rich.console import Console

    from server import command

    command.stop(server, run, Console())


def logs(run: Annotated[str, typer.Argument(help="The run's id.")], server: Server = HERE) -> None:
    """Show what a run tells and writes, until it ends."""
    from rich.console import Console

    from server import command

    command.logs(server, run, Console())
