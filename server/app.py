"""The ServerApp: a thin adapter between Flower and `server.serving`."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from hansa.appfiles import FEDERATION, app_files
from hansa.config import load
from hansa.errors import RunFailed, UserError
from hansa.files import write_atomically
from hansa.startup import SERVER_FILE
from hansa.tables import FederationTable, is_name
from hansa.wire.rules import HERE
from server.appcheck import check_app
from server.arrivals import one_line
from server.command import control, home_of_new
from server.flower import Control, Refused, Unreachable, bundle
from server.launch import APP, Launch, launching, new_run, read_launch, write_launch
from server.nodes import Nodes
from server.serverfile import load_server_file
from server.serving import Seat, Serving

PATIENCE = 2.0  # seconds that a process gets to end itself after a signal
AGAIN = 60.0  # seconds after which a site that declined is asked again: it may have changed its mind
SOON = 10.0  # seconds after which a site is asked again that has the run in hand by another node
ELSEWHERE = (
    "failed: no server is here. To run this app on this machine, use `hansa simulate`; to run it on sites, give it to "
    "the SuperLink of a `hansa server up`"
)
app = ServerApp()


class FlowerInviter:
    """Invites sites by one Flower message each.

    Args:
        grid: of the run.
        control: of the SuperLink: it knows which node is whose.
        say: gets a line for the run's log.
        longest: seconds that a run may take, and an invitation stands.
        nodes: that the run holds.
    """

    def __init__(self, grid: Grid, control: Control, say: Callable[[str], None], longest: float, nodes: Nodes) -> None:
        self.grid, self.control, self.say, self.longest, self.nodes = grid, control, say, longest, nodes
        self.open: dict[str, str] = {}  # message -> site, not answered yet
        self.declined: dict[str, str] = {}  # see Inviter
        self.busy: Mapping[str, Sequence[str]] = {}  # see Inviter
        self._again: dict[str, float] = {}  # site that declined -> when it is asked again

    def look(
        self, sites: Collection[str], present: set[str], invitation: Callable[[str, int], Mapping[str, str | int]]
    ) -> None:
        """See Inviter."""
        with suppress(Unreachable, Refused):  # the SuperLink is being started again
            self._take_replies()
            for site in [site for site, due in self._again.items() if time.monotonic() >= due]:
                del self._again[site]
            here = {*self.open.values(), *present}
            online = dict[str, list[int]]()
            for node in self.control.nodes():
                if node.online:
                    online.setdefault(node.name, []).append(node.id)
            chosen = self.nodes.look(here, {*sites} - here - self._again.keys(), online)
            self.busy = chosen.busy
            for site, number in chosen.nodes.items():
                record = RecordDict({"invitation": ConfigRecord(dict(invitation(site, number)))})
                message = Message(record, dst_node_id=number, message_type="train", ttl=self.longest)
                self.open.update(dict.fromkeys(self.grid.push_messages([message]), site))
                self.say(f"{site} is invited")

    def drain(self, seconds: float) -> None:
        """See Inviter."""
        end = time.monotonic() + seconds
        with suppress(Unreachable, Refused):
            while self.open and time.monotonic() < end:
                self._take_replies()
                time.sleep(0.1)
        self.nodes.release()

    def _take_replies(self) -> None:
        if not self.open:
            return
        for reply in self.grid.pull_messages(list(self.open)):
            site = self.open.pop(reply.metadata.reply_to_message_id, None)
            if site is None:
                continue
            if reply.has_error():
                self.say(f"{site}'s connection ended: {reply.error.reason}")
            else:
                self._take_answer(site, reply.content.config_records.get("answer", ConfigRecord()))

    def _take_answer(self, site: str, answer: ConfigRecord) -> None:
        line, code = (one_line(str(answer.get(key, ""))) for key in ("line", "code"))
        self.say(f"{site}: {line} ({code})" if code else f"{site}: {line}")
        if code == HERE:  # its session is lost just now, or held for the start before: it comes by itself
            self._again[site] = time.monotonic() + SOON
        elif code:
            self.declined[site] = f"{line} ({code})"
            self._again[site] = time.monotonic() + AGAIN


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serves one start of a run."""
    if "HANSA_SERVER" not in os.environ:
        say(ELSEWHERE)
        return
    folder = Path(os.environ["HANSA_SERVER"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        seat = seated(folder, context.run_config, context.run_id, delivered())
        with control(folder) as link:
            longest = load_server_file(folder / SERVER_FILE).runs.max_duration
            Serving(delivered(), seat, FlowerInviter(grid, link, say, longest, Nodes(seat.home)), say).serve()
    except (UserError, RunFailed) as error:
        say(f"failed: {error}")


def seated(folder: Path, config: Mapping[str, bool | float | int | str], flower_run: int, app: Path) -> Seat:
    """Where this start is served. A run that `flwr run` has started gets a name here, and is looked after like others.

    Args:
        folder: the server's.
        config: the app's configuration, as Flower has it.
        flower_run: Flower's id of the run.
        app: the folder of the delivered app.

    Raises:
        UserError: the app is wrong, or the name is.
    """
    name, epoch = str(config.get("hansa-run", "")), int(config.get("hansa-epoch", 1))
    if name and is_name(name) and read_launch(folder / "runs" / name) is not None:
        return Seat(folder, name, epoch)
    files = app_files(app)
    check_app(files, app)
    head = load(app / FEDERATION, without=["simulation"]).table("federation", FederationTable)
    home = home_of_new(folder, name or new_run(head.name))
    home.mkdir(parents=True)
    write_atomically(home / APP, bundle(files))
    with launching(home):
        write_launch(home, Launch(epoch, flower_run))
    return Seat(folder, home.name, epoch)


def delivered() -> Path:
    """The folder into which Flower has unpacked the app: it stands on the path of modules."""
    for path in sys.path:
        if path and (Path(path) / FEDERATION).is_file():
            return Path(path)
    raise UserError(f"the app that Flower delivered has no {FEDERATION}")


def say(line: str) -> None:
    """A line of the run's log, which `hansa logs` shows."""
    print(line, flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    """A signal is Flower's way to end this process; what it answers in the meantime is not waited for."""
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)
    threading.Timer(PATIENCE, os._exit, (0,)).start()
    raise SystemExit(0)
