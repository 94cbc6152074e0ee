"""What `hansa run`, `hansa status`, `hansa stop` and `hansa logs` do, on the server's machine."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL, SIGTERM

from rich.console import Console

from hansa.address import split
from hansa.appfiles import FEDERATION, app_digest, app_files
from hansa.config import load
from hansa.console import say
from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.person import PERSON_FILE
from hansa.startup import CA, SERVER_FILE, read, read_roster
from hansa.supervise import lives, told
from hansa.tables import FederationTable, is_name
from server.acts import Acts
from server.appcheck import check_app
from server.fetch import fetch as fetch_from
from server.flower import Control, Refused, Unreachable, begin, bundle
from server.follow import Follower
from server.launch import APP, hints, launching, new_run, read_launch, send_to_process, served, wanted, write_launch
from server.nodes import forget, holdings, in_words
from server.owners import write_owner
from server.renewal import endings
from server.results import Here
from server.securerules import check_privacy
from server.serverfile import load_server_file
from server.store import DONE, FILE, State, Store

AtClose = Callable[[Callable[[], None]], None]
GOODBYE = 3.0  # seconds that a run's process may take to end, once it is asked


def start(app: Path, server: Path, *, name: str | None, detach: bool, console: Console) -> None:
    """Runs an app on the sites: checks it, gives it to the server, follows it to its end.

    Raises:
        UserError: the app is wrong, or no server runs on the folder.
        RunFailed: the run did not get to its end.
    """
    check_server(server)
    files, config = app_files(app), load(app / FEDERATION)
    check_app(files, app)
    check_privacy(config, len(read_roster(server).sites))
    run = name or new_run(config.table("federation", FederationTable).name)
    begin_new(server, run, files, console)
    if follow(server, run, console, detach):
        say(console, f"model and metrics: {server / 'runs' / run}")


def begin_new(server: Path, run: str, files: Mapping[str, bytes], console: Console, owner: str | None = None) -> None:
    """Gives a new run to the server.

    Args:
        server: its folder.
        run: the run's id.
        files: the app's.
        console: where to say so.
        owner: the researcher whose run it is; None: nobody's but this machine's.

    Raises:
        UserError: there is such a run, the app cannot be shipped, or no server runs on the folder.
    """
    folder = home_of_new(server, run)
    with control(server) as calls:
        _check_port(server)
        app = bundle(files)
        folder.parent.mkdir(exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:  # just now, by another process
            raise _taken(run) from None
        if owner is not None:
            write_owner(folder, owner)
        write_atomically(folder / APP, app)
        with launching(folder):
            begin(calls, folder)
    say(console, f"run {run}; its app is {app_digest(files)}, which each site must allow")


def resume(server: Path, *, name: str | None, detach: bool, console: Console) -> None:
    """Goes on with a run that was interrupted or failed, with the app that it began with.

    Raises:
        UserError: there is none, it is complete, or it is running.
        RunFailed: the run did not get to its end.
    """
    run, events = begin_again(server, name)
    if follow(server, run, console, detach, events):
        say(console, f"model and metrics: {server / 'runs' / run}")


def begin_again(server: Path, name: str | None) -> tuple[str, int]:
    """Starts a run that was interrupted or failed; its id, and how many of its events are old.

    Args:
        server: its folder.
        name: the run's id; None: the newest.

    Raises:
        UserError: there is none, it is complete, or it is running.
    """
    check_server(server)
    runs = server / "runs"
    store = _store(server)
    if (run := name or store.latest()) is None:
        raise UserError(f"{runs}: no run was interrupted, so nothing to resume")
    state, launch = State(store.entry(run)["state"]), read_launch(runs / run)
    if launch is None:
        raise UserError(f"run {run} was not deployed, so it cannot be resumed here")
    if state in DONE:
        raise UserError(f"run {run} is complete ({state}); nothing is left to resume, start a new run")
    events = len(store.events(run))
    with control(server) as calls, launching(runs / run):
        if served(runs / run, launch.epoch):
            raise UserError(f"run {run} is running; follow it with hansa logs {run}")
        _check_port(server, run)
        forget(runs / run)
        begin(calls, runs / run)
    return run, events


def status(server: Path, console: Console) -> None:
    """Prints whether the server runs, which sites are connected, and how the runs stand."""
    check_server(server)
    roster, online, there = read_roster(server), set[bytes](), dict(holdings(server / "runs"))
    try:
        with control(server) as calls:
            online = {node.key for node in calls.nodes() if node.online}
        say(console, f"server: up ({_address(server)})")
    except (UserError, Unreachable) as error:
        say(console, f"server: down ({error})" if isinstance(error, Unreachable) else "server: down")
    for site in roster.sites:
        nodes = sum(node.encode() in online for node in site.nodes)
        runs = sorted(run for run, held in there.items() if site.name in held.nodes)
        how = "" if nodes in (0, len(site.nodes)) else f" by {nodes} of {len(site.nodes)} nodes"
        within = f", in {in_words(runs)}" if runs else ""
        say(console, f"site {site.name}: {'connected' if nodes else 'not connected'}{how}{within}")
    for line in endings(server, roster, datetime.now(UTC)):
        say(console, line)
    if not (server / "runs" / FILE).is_file():
        return
    store = _store(server)
    for run in store.runs().itertuples():
        rounds = store.rounds(str(run.run))
        done = len(rounds[rounds["kind"] == "train"])
        say(
            console,
            f"run {run.run}: {run.state}, {done} rounds{_process(server / 'runs' / str(run.run), str(run.state))}",
        )


def stop(server: Path, run: str, console: Console) -> None:
    """Stops a run: its sites go, its rounds so far are kept.

    Raises:
        UserError: there is no such run.
    """
    check_server(server)
    folder, launch = server / "runs" / run, read_launch(server / "runs" / run)
    if launch is None:
        raise UserError(f"{folder}: there is no run {run}; hansa status lists them")
    with launching(folder):
        launch = replace(read_launch(folder) or launch, wanted=False)
        write_launch(folder, launch)  # first: it is not to be started again
        state = _interrupt(server, run)  # then: its process reads there whether its sites may go
        if launch.flower_run is not None:
            try:
                with control(server) as calls:
                    calls.stop(launch.flower_run)
            except (UserError, Unreachable, Refused):
                say(console, "the server is down")
        _end_process(folder, launch.epoch)
    say(console, f"run {run} is {state}" if state else f"run {run} had not begun, and will not")


def logs(server: Path, run: str, console: Console, at_close: AtClose = lambda cut: None) -> None:
    """Prints a run's events, and what its process writes until it ends.

    Args:
        server: its folder.
        run: the run's id.
        console: where to.
        at_close: gets what ends this from another thread.

    Raises:
        UserError: there is no such run.
    """
    check_server(server)
    launch = read_launch(server / "runs" / run)
    if (server / "runs" / FILE).is_file() or launch is None:
        try:
            for event in _store(server).events(run).itertuples():
                say(console, f"{event.time} {event.level}: {event.text}")
        except UserError:
            if launch is None:
                raise
    if launch is None or launch.flower_run is None:
        return
    with control(server) as calls:
        at_close(calls.cut)
        for text in calls.logs(launch.flower_run):
            console.out(text, end="", highlight=False)


def fetch(server: Path, run: str, to: Path, console: Console) -> None:
    """Lays a run's files into a folder.

    Raises:
        UserError: there is no such run, it is not complete, or another file is in the way.
    """
    check_server(server)
    fetch_from(Here(server), run, to, lambda line: say(console, line))


def audit(server: Path, console: Console) -> None:
    """Prints what was asked of the control end."""
    check_server(server)
    for line in Acts(server).lines():
        say(console, str(line))


def _check_port(server: Path, run: str = "") -> None:
    """Whether the port of sessions is free for a run: without a public one, all runs would have the same.

    Raises:
        UserError: another run has it.
    """
    where = load_server_file(server / SERVER_FILE).server
    if where.public or split(where.session)[1] == 0:
        return
    for other, _ in wanted(server / "runs"):
        if other != run and (_state(server, other) or State.RUNNING) is State.RUNNING:
            raise UserError(
                f"run {other} has the one port for sessions, {where.session}: wait for its end, or have several runs "
                f"at once by a public port ([server] public in {SERVER_FILE})"
            )


def home_of_new(server: Path, run: str) -> Path:
    """The folder that a new run will have.

    Raises:
        UserError: there is such a run, or it is no name.
    """
    folder = server / "runs" / run
    if not is_name(run) or run.startswith(FILE):  # the store is a file beside the runs, with others of its name
        wrong = "is no name for a run (letters, digits, dots, dashes)"
        raise UserError(f"run {run}: {wrong}; choose another name, or leave it out")
    if folder.exists():
        raise _taken(run)
    return folder


def _taken(run: str) -> UserError:
    return UserError(f"run {run}: exists already; choose another name, or leave it out")


def control(server: Path) -> Control:
    """Calls to the SuperLink of the server that runs on a folder.

    Raises:
        UserError: none does.
    """
    return Control(_address(server), read(server, CA))


def _address(server: Path) -> str:
    found = told(server, "server")
    if found is None or not lives(found) or "address" not in found:
        raise UserError(f"{server}: no server runs on it; start one with hansa server up {server}")
    return str(found["address"])


def follow(
    server: Path,
    run: str,
    console: Console,
    detach: bool = False,
    events: int = 0,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Shows what a run tells to its end; False if that is not waited for.

    Args:
        server: its folder.
        run: the run's id.
        console: where to.
        detach: whether only to say that it is on its way.
        events: how many of its events are old.
        wait: sleeps for so many seconds.

    Raises:
        RunFailed: the run did not get to its end.
    """
    if detach:
        say(console, f"run {run} is on its way; {hints(run)}")
        return False
    try:
        Follower(server / "runs", run, console, events, wait).follow()
    except KeyboardInterrupt:
        say(console, f"run {run} goes on; {hints(run)}")
        raise
    return True


def _interrupt(server: Path, run: str) -> State | None:
    """Enters that a run was stopped, if it was running; its state, None if it had not begun."""
    if (state := _state(server, run)) is State.RUNNING:
        _store(server).end(run, state := State.INTERRUPTED, "hansa stop")
    return state


def _state(server: Path, run: str) -> State | None:
    """How a run stands; None if it has not begun."""
    try:
        return State(_store(server).entry(run)["state"])
    except UserError:
        return None


def _end_process(run: Path, epoch: int) -> None:
    """Waits until a run's process has ended, with more and more emphasis."""
    for number in (SIGTERM, SIGKILL):
        deadline = time.monotonic() + GOODBYE
        while served(run, epoch) and time.monotonic() < deadline:
            time.sleep(0.1)
        send_to_process(run, epoch, number)
    while served(run, epoch):
        time.sleep(0.1)


def _process(run: Path, state: str) -> str:
    launch = read_launch(run)
    if state != State.RUNNING or launch is None or served(run, launch.epoch) is not False:
        return ""
    return ", its process is gone" + (" (goes on when the server is up)" if launch.wanted else "")


def check_server(server: Path) -> None:
    """Whether it is a server's folder at all: the present one often is not.

    Raises:
        UserError: it is not.
    """
    if not (server / SERVER_FILE).is_file():
        mend = "give the server's folder, or yours that the consortium has made, by --server or HANSA_SERVER"
        raise UserError(f"{server}: there is no {SERVER_FILE} and no {PERSON_FILE}; {mend}")


def _store(server: Path) -> Store:
    if not (server / "runs" / FILE).is_file():
        raise UserError(f"{server / 'runs'}: there are no runs yet")
    return Store(server / "runs" / FILE)
