"""What people ask of runs, by verb: what `server.command` does on the server's machine, its lines sent to them."""

import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from hansa.appfiles import app_digest, unpacked
from hansa.console import say
from hansa.errors import UserError
from hansa.startup import SERVER_FILE, read_roster
from hansa.tables import A_NAME, Name, Table
from server import command
from server.appcheck import check_app
from server.asking import Ask, Denied, Handler, Sent
from server.launch import read_launch
from server.owners import owner
from server.results import described, results
from server.roles import ACTS
from server.serverfile import load_server_file
from server.store import DONE, FILE, Store

WIDTH = 200  # characters of a line that rich would wrap


class Lines(io.TextIOBase):
    """A console's file whose whole lines are sent to a caller."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self._part = ask, ""

    def write(self, text: str) -> int:
        """Sends what has become whole."""
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._ask.say(line)
        return len(text)


def console(ask: Ask) -> Console:
    """What a command prints on, for a caller."""
    return Console(file=Lines(ask), color_system=None, width=WIDTH)  # type: ignore[arg-type]


class Start(Table):
    """Asks for a new run."""

    run: Annotated[Name, Field(description=A_NAME)]
    files: Mapping[str, str]  # the app's, in base64
    detach: bool = False


class Resumption(Table):
    """Asks for a run to go on."""

    run: Name | None = None  # None: the newest of the caller's that is not complete
    detach: bool = False


class Fetch(Table):
    """Asks what a run has left, or for a file of that."""

    run: Name
    file: str | None = None
    offset: Annotated[int, Field(ge=0)] = 0  # of its bytes


def run(ask: Ask) -> Mapping[str, Any]:
    """Starts a run, and shows it to its end."""
    said = ask.table(Start)
    ask.subject = said.run
    files = unpacked(said.files)
    check_app(files, Path("app"))
    _check_allowed(ask, app_digest(files))
    command.home_of_new(ask.folder, said.run)
    ask.permit()
    out = console(ask)
    command.begin_new(ask.folder, said.run, files, out, owner=ask.caller.name)
    return _followed(ask, out, said.run, said.detach, 0)


def resume(ask: Ask) -> Mapping[str, Any]:
    """Goes on with a run of the caller's, and shows it to its end."""
    said = ask.table(Resumption)
    name = said.run or _newest_of(ask)
    _check_own(ask, name)
    ask.permit()
    again, events = command.begin_again(ask.folder, name)
    return _followed(ask, console(ask), again, said.detach, events)


def status(ask: Ask) -> Mapping[str, Any]:
    """The server, its sites and its runs; how many sites there are."""
    ask.permit()
    command.status(ask.folder, console(ask))
    return {"sites": len(read_roster(ask.folder).sites)}


def stop(ask: Ask) -> Mapping[str, Any]:
    """Stops a run."""
    name = ask.run()
    _check_own(ask, name)
    ask.permit()
    command.stop(ask.folder, name, console(ask))
    return {}


def logs(ask: Ask) -> Mapping[str, Any]:
    """What a run tells and writes, until it ends."""
    name = ask.run()
    ask.permit()
    command.logs(ask.folder, name, console(ask), ask.answer.at_close)
    return {}


def fetch(ask: Ask) -> Mapping[str, Any] | Sent:
    """What a run of the caller's has left: a list with sizes and digests, or one file."""
    said = ask.table(Fetch)
    _check_own(ask, said.run)
    found, manifest = results(ask.folder, said.run)
    if said.file is None:
        ask.permit()
        return {"files": described(found), "manifest": manifest}
    if (one := found.get(said.file)) is None or said.offset > one.size:
        raise UserError(f"run {said.run} has no such file, or less of it; fetch it anew")
    ask.permit()
    return Sent(one.path, said.offset, one.size)


def audit(ask: Ask) -> Mapping[str, Any]:
    """The record of acts."""
    ask.permit()
    for line in ask.acts.lines():
        ask.say(str(line))
    return {}


def _followed(ask: Ask, out: Console, name: str, detach: bool, events: int) -> Mapping[str, Any]:
    if command.follow(ask.folder, name, out, detach, events, ask.answer.wait):
        say(out, f"model and metrics: hansa fetch {name}")
    return {}


def _check_allowed(ask: Ask, digest: str) -> None:
    """Whether an app may run at this server: it is code.

    Raises:
        Denied: it may not.
    """
    allowed = load_server_file(ask.folder / SERVER_FILE).apps.allowed
    if allowed is not None and digest not in allowed:
        line = f"the server does not allow this app: its operator must list {digest} in [apps] allowed of {SERVER_FILE}"
        raise Denied("app_not_allowed", line)


def _check_own(ask: Ask, name: str) -> None:
    """Whether the caller may ask about a run.

    Raises:
        Denied: it is another one's, and only its owner may.
        UserError: there is no such run.
    """
    ask.subject, home = name, ask.folder / "runs" / name
    if read_launch(home) is None:
        raise UserError(f"there is no run {name}; hansa status lists them")
    if ask.caller.role in ACTS[ask.verb].own and owner(home) != ask.caller.name:
        raise Denied("not_own", f"run {name} is not yours; only who started it may {ask.verb} it")


def _newest_of(ask: Ask) -> str:
    """The newest run of the caller's that is not complete."""
    runs = ask.folder / "runs"
    if (runs / FILE).is_file():
        for row in reversed(Store(runs / FILE).runs().to_dict("records")):
            with suppress(UserError):  # another one's, perhaps, and whose is unknown
                if row["state"] not in DONE and owner(runs / str(row["run"])) == ask.caller.name:
                    return str(row["run"])
    raise UserError("no run of yours was interrupted, so nothing to resume")


VERBS: Mapping[str, Handler] = {
    "run": run,
    "resume": resume,
    "status": status,
    "stop": stop,
    "logs": logs,
    "fetch": fetch,
    "audit": audit,
}
