"""What `hansa run`, `hansa status` and the like do from a person's folder: they ask the server."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from hansa.appfiles import FEDERATION, app_files, packed
from hansa.config import load
from hansa.console import say
from hansa.controlclient import Unanswered
from hansa.errors import RunFailed
from hansa.person import open_person
from hansa.tables import FederationTable
from server.appcheck import check_app
from server.fetch import There
from server.fetch import fetch as fetch_from
from server.launch import hints, new_run
from server.securerules import check_privacy


def start(app: Path, server: Path, *, name: str | None, detach: bool, console: Console) -> None:
    """Has an app run on the sites: checks it, sends it to the server, shows what that says to the run's end.

    Args:
        app: its folder.
        server: the person's folder, and so in all the others.
        name: the run's id; None: one is made.
        detach: whether not to wait for the run's end.
        console: where to print.

    Raises:
        UserError: the app is wrong, or the server refuses it.
        RunFailed: the run did not get to its end, or the server does not answer.
    """
    files, config = app_files(app), load(app / FEDERATION)
    check_app(files, app)
    check_privacy(config, _sites(server))
    run = name or new_run(config.table("federation", FederationTable).name)
    _shown(server, console, run, "run", {"run": run, "files": packed(files), "detach": detach})


def resume(server: Path, *, name: str | None, detach: bool, console: Console) -> None:
    """Has a run go on. Arguments and errors as with `start`."""
    _shown(server, console, name, "resume", {"run": name, "detach": detach})


def status(server: Path, console: Console) -> None:
    """Prints how the server, its sites and its runs stand."""
    _ask(server, "status", {}, console)


def stop(server: Path, run: str, console: Console) -> None:
    """Stops a run."""
    _ask(server, "stop", {"run": run}, console)


def logs(server: Path, run: str, console: Console) -> None:
    """Prints what a run tells and writes, until it ends."""
    _ask(server, "logs", {"run": run}, console)


def audit(server: Path, console: Console) -> None:
    """Prints the record of acts."""
    _ask(server, "audit", {}, console)


def fetch(server: Path, run: str, to: Path, console: Console) -> None:
    """Lays a run's files into a folder."""
    fetch_from(There(open_person(server, datetime.now(UTC)).control), run, to, lambda line: say(console, line))


def _ask(
    server: Path, verb: str, body: Mapping[str, Any], console: Console, heard: Callable[[], None] = lambda: None
) -> None:
    def show(line: str) -> None:
        heard()
        say(console, line)

    open_person(server, datetime.now(UTC)).control.ask(verb, body, show)


def _sites(server: Path) -> int:
    """How many sites the consortium has."""
    return int(open_person(server, datetime.now(UTC)).control.ask("status", {}, lambda line: None)["sites"])


def _shown(server: Path, console: Console, run: str | None, verb: str, body: Mapping[str, Any]) -> None:
    """Asks for a run and shows it. What ends the report does not end the run."""
    begun = False

    def heard() -> None:
        nonlocal begun
        begun = True

    try:
        _ask(server, verb, body, console, heard)
    except KeyboardInterrupt:
        if begun:
            say(console, _goes_on(run))
        raise
    except Unanswered as lost:
        if not begun:
            raise
        raise RunFailed(f"{lost}; {_goes_on(run)}") from None


def _goes_on(run: str | None) -> str:
    return f"run {run} goes on; {hints(run)}" if run else "the run goes on; hansa status says how it is called"
