"""The server's commands."""

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer


def provision(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder: a new one, or one made before.")],
    site: Annotated[list[str] | None, typer.Option(help="A site to add; repeatable.")] = None,
    researcher: Annotated[list[str] | None, typer.Option(help="Somebody who starts runs; repeatable.")] = None,
    auditor: Annotated[list[str] | None, typer.Option(help="Somebody who reads what was done; repeatable.")] = None,
    administrator: Annotated[
        list[str] | None, typer.Option(help="Somebody who decides who is in, besides you; repeatable.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or IP address of the server; repeatable, sites dial the first. [default: 127.0.0.1]"),
    ] = None,
    port: Annotated[int | None, typer.Option(help="The server's public port. [default: 9443; --direct: 9092]")] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Two ports and no gate: Flower's at --port, the sessions' at the next.")
    ] = False,
    consortium: Annotated[str | None, typer.Option(help="Its name. [default: the folder's]")] = None,
    nodes: Annotated[int, typer.Option(help="Of each site that is added: in so many runs can it be at once.")] = 1,
) -> None:
    """Make the certificates, keys and folders of a consortium, or add sites and people to it."""
    from datetime import UTC, datetime

    from hansa.roles import Role
    from server.provision import Founding, provision

    named = {Role.RESEARCHER: researcher, Role.AUDITOR: auditor, Role.ADMINISTRATOR: administrator}
    people = [(role, name) for role, names in named.items() for name in names or []]
    founding = Founding(consortium, tuple(host or ()), port, direct)
    for line in provision(folder, site or [], founding, datetime.now(UTC), people, nodes):
        typer.echo(line)


Server = Annotated[
    Path,
    typer.Option(
        "--server", envvar="HANSA_SERVER", help="The server's folder, or that by which you ask it from elsewhere."
    ),
]
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

    at = _at(server)
    if not resume:
        at.start(app or HERE, server, name=run, detach=detach, console=Console())
    elif app is None:
        at.resume(server, name=run, detach=detach, console=Console())
    else:
        raise UserError(f"{app}: a run goes on with the app that it began with; leave the folder out")


Run = Annotated[str, typer.Argument(help="The run's id.")]


def status(server: Server = HERE) -> None:
    """Show the server, its sites and its runs."""
    from rich.console import Console

    _at(server).status(server, Console())


def stop(run: Run, server: Server = HERE) -> None:
    """Stop a run; it can go on by --resume."""
    from rich.console import Console

    _at(server).stop(server, run, Console())


def logs(run: Run, server: Server = HERE) -> None:
    """Show what a run tells and writes, until it ends."""
    from rich.console import Console

    _at(server).logs(server, run, Console())


def fetch(
    run: Run,
    server: Server = HERE,
    to: Annotated[Path | None, typer.Option(help="The folder for it. [default: one of the run's name, here]")] = None,
) -> None:
    """Get a run's model, metrics and federation.toml; what was cut off goes on where it was."""
    from rich.console import Console

    _at(server).fetch(server, run, to or Path(run), Console())


def audit(server: Server = HERE) -> None:
    """Show who has asked the server for what, and what came of it."""
    from rich.console import Console

    _at(server).audit(server, Console())


def _at(server: Path) -> ModuleType:
    """The commands as they are done in a server's folder, or in that of somebody who asks it from elsewhere."""
    from hansa.person import PERSON_FILE

    if (server / PERSON_FILE).is_file():
        from server import remote

        return remote
    from server import command

    return command


def invite(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder, that hansa provision made.")],
    site: Annotated[str, typer.Argument(help="The name of the site that is to join.")],
    days: Annotated[int, typer.Option(help="For how many days the invitation is good.")] = 7,
    nodes: Annotated[int, typer.Option(help="That the site is to have: in so many runs can it be at once.")] = 1,
) -> None:
    """Write the kit by which a new site joins; there it is given to hansa site join."""
    from datetime import UTC, datetime

    from server.invite import invite

    for line in invite(folder, site, datetime.now(UTC), days, nodes):
        typer.echo(line)


def approve(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder, that hansa provision made.")],
    name: Annotated[list[str] | None, typer.Argument(help="Whom to let in. [default: whoever waits]")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; only where the fingerprints were compared.")] = False,
) -> None:
    """Let in the sites that ask to join or to renew their certificate, and give the server the newest roster."""
    from datetime import UTC, datetime

    from server.approve import administrator_asks, approve

    def agreed(line: str) -> bool:
        if yes:
            typer.echo(line)
        return yes or typer.confirm(f"{line}; are these the keys that the site has told you?")

    now = datetime.now(UTC)
    approve(folder, name or [], now, administrator_asks(folder, now, typer.echo), agreed, typer.echo)


def revoke(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder, that hansa provision made.")],
    name: Annotated[str, typer.Argument(help="The site or the person.")],
) -> None:
    """Take a site or a person out, for good."""
    from datetime import UTC, datetime

    from server.approve import administrator_asks, revoke

    now = datetime.now(UTC)
    revoke(folder, name, now, administrator_asks(folder, now, typer.echo), typer.echo)


def renew(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder, that hansa provision made.")],
    host: Annotated[
        list[str] | None, typer.Option(help="A name or IP address of the server; repeatable. [default: as it was]")
    ] = None,
) -> None:
    """Make the server's next certificate; a site renews its own by hansa site renew."""
    from datetime import UTC, datetime

    from server.renewal import renew

    for line in renew(folder, host or [], datetime.now(UTC)):
        typer.echo(line)
