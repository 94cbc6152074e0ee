"""A deployed run at the server: sessions opened, sites invited, rounds run, everybody told when it is over.

Knows nothing of Flower: who invites is passed in.
"""

import json
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from hansa.address import join, split
from hansa.appfiles import FEDERATION, app_files
from hansa.config import Config, load
from hansa.device import using_threads
from hansa.errors import RunFailed, UserError
from hansa.files import write_atomically
from hansa.folders import made, write_folder
from hansa.records import ServerState
from hansa.routes import session_name
from hansa.runfolder import APP, MODEL, PRIVACY
from hansa.startup import CA, SERVER_FILE, TLS_CERTIFICATE, TLS_KEY, read_roster
from hansa.tables import FederationTable
from hansa.task import Task
from hansa.taskfile import load_class
from hansa.workbench import Workbench
from privacy.dp.config import DpTable
from privacy.dp.terms import riding
from privacy.secagg.keystream import fastest
from server.checkpoint import Checkpoints, Progress, RunLock
from server.config import RoundsTable, count
from server.deployed import LinkedCohort
from server.events import Event, Listener, RoundCommitted
from server.hello import Terms, token
from server.launch import announce
from server.link import Identity, Links
from server.nodes import in_words
from server.promise import promised
from server.recorder import Recorder, ending
from server.revoked import Revoked
from server.run import Outcome, Run
from server.score import scorer
from server.securecohort import Ground, SecureCohort
from server.securerules import announced, privacy_of, secure_of
from server.serverfile import ServerFile, load_server_file
from server.sessions import SESSION
from server.sitelevel import SiteLevel, level_of
from server.store import FILE, State, Store
from server.transcript import Transcript
from strategies.base import Strategy

ADOPT = 5.0  # seconds that a resumed run leaves to sessions that are still alive, before it invites anybody
ASSEMBLE = 60.0  # seconds that the first round waits for all sites, where the quorum is there
LOOK = 1.0  # seconds between two looks at who is missing
DRAIN = 3.0  # seconds that the sites get to answer for good at the end
THREADS = 1  # of torch: adding up is quick, and a second thread is one more to wait for
ENGINE, HARDWARE = "deployed", "sites"  # what the run store says of where a deployed run is computed


class Inviter(Protocol):
    """Brings sites into the run's sessions."""

    @property
    def declined(self) -> Mapping[str, str]:
        """Sites that took no part when they were last asked, and why."""
        ...

    @property
    def busy(self) -> Mapping[str, Sequence[str]]:
        """Sites that can be reached, and the runs in which they are just now, and so not in this one."""
        ...

    def look(
        self, sites: Collection[str], present: set[str], invitation: Callable[[str, int], Mapping[str, str | int]]
    ) -> None:
        """Invites the sites that can be reached, are not here and are not invited; called about once a second."""
        ...

    def drain(self, seconds: float) -> None:
        """Waits until the invited have answered, so that nothing of this run outlives it."""
        ...


@dataclass(frozen=True)
class Seat:
    """Where a run is served.

    Args:
        folder: the server's.
        run: the run's id.
        epoch: of this start, from 1.
    """

    folder: Path
    run: str
    epoch: int

    @property
    def home(self) -> Path:
        """The run's folder."""
        return self.folder / "runs" / self.run


class Serving:
    """One start of a run.

    Raises:
        UserError: the app or server.toml cannot be used.
    """

    def __init__(self, app: Path, seat: Seat, inviter: Inviter, say: Callable[[str], None]) -> None:
        self.seat, self.inviter, self.say, self.began = seat, inviter, say, time.monotonic()
        seat.home.mkdir(parents=True, exist_ok=True)
        self.file: ServerFile = load_server_file(seat.folder / SERVER_FILE)
        self.roster = read_roster(seat.folder)
        self.sites = [member.name for member in self.roster.sites]
        self.store = Store(seat.folder / "runs" / FILE, held=True)
        self.config: Config = load(_kept(app, seat.home / APP) / FEDERATION, without=["simulation"])
        head = self.config.table("federation", FederationTable)
        self.task: Task = load_class(head.task, self.config.folder, Task, "task")()
        self.strategy, self.seed, self.name = self.config.table("strategy", Strategy), head.seed, head.name
        self.rounds = self.config.table("rounds", RoundsTable)
        self.dp: DpTable | None = self.config.get("dp")
        self.bench = Workbench(self.task, self.strategy.local, head.seed, torch.device("cpu"))
        self.secure = secure_of(privacy_of(self.config), self.rounds, self.strategy, self.bench.shared, len(self.sites))
        self.secret = _secret(seat.home / "secret")

    def serve(self) -> None:
        """Serves the run to its end.

        Raises:
            UserError: bad input or data.
            RunFailed: too many rounds in a row did not count.
        """
        with RunLock(self.seat.home), using_threads(THREADS), closing(self.store):
            announce(self.seat.home, self.seat.epoch)
            checkpoints = Checkpoints(self.seat.home / "checkpoints")
            start = checkpoints.load()
            self._enter(start)
            with ending(self.store, self.seat.run) as ended:
                links = self._open()
                try:
                    outcome = self._go(links, checkpoints, start)
                    ended.state = State.STOPPED_EARLY if outcome.early else State.FINISHED
                except SystemExit:
                    self._leave(links)
                    raise
                except BaseException:
                    self._close(links, "the run has failed; the server's log says why")
                    raise
                self._close(links, "the run is over")

    def _enter(self, start: tuple[ServerState, Progress] | None) -> None:
        """Enters the run, or reopens it where an earlier start of it left off."""
        try:
            self.store.entry(self.seat.run)
        except UserError:
            facts = {"config": self.config.text, "engine": ENGINE, "hardware": HARDWARE}
            self.store.create(self.seat.run, name=self.name, seed=self.seed, threads=THREADS, **facts)
        else:
            self.store.reopen(self.seat.run, start[1].round if start else 0)

    def _open(self) -> Links:
        """Listens for sessions, at the port of the start before if there was one: sites look for the server there."""
        terms = Terms(
            self.seat.run, self.seat.epoch, self.sites, self.bench.shared.digest, self.strategy.digest, self.secret
        )
        folder, runs = self.seat.folder, self.file.runs
        identity = Identity(folder / CA, folder / TLS_CERTIFICATE, folder / TLS_KEY)
        revoked, server = Revoked(folder).fingerprints, self.file.server
        links = Links(terms, identity, self.seat.home / "spool", runs.heartbeat, runs.orphan_after, revoked)
        (host, port), noted = split(server.sessions), self.seat.home / SESSION
        if not port and not server.public and noted.is_file():
            port = int(json.loads(noted.read_text())["port"])
        port = links.start(join(host, port))
        write_atomically(noted, json.dumps({"port": port, "epoch": self.seat.epoch}).encode())
        self.address = server.reached or server.announce or join(host, port)
        self.say(f"run {self.seat.run}, start {self.seat.epoch}: sessions at {self.address}")
        return links

    def _go(self, links: Links, checkpoints: Checkpoints, start: tuple[ServerState, Progress] | None) -> Outcome:
        shared, strategy = self.bench.shared, self.strategy
        cohort = self._cohort(links)
        state, progress = start or (strategy.start(*self.bench.start, shared.n_parameters), Progress())
        listeners: list[Listener] = [Recorder(self.store, self.seat.run), cohort.hear, self._in_time]

        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)

        score = scorer(self.task, self.bench)
        if score is not None and "base" in self.config:
            name = type(self.task).__name__
            raise UserError(f"task {name}: server_data is scored at the server, where no [base] is; remove server_data")
        noise = level_of(self.dp, self.rounds, len(self.sites), cohort.parts, self.secure)
        self._promise(noise)
        run = Run(self.seat.run, self.seed, self.rounds, self._hyper, strategy, cohort, checkpoints, tell, score, noise)
        with self._inviting(links):
            self._assemble(links)
            outcome = run.go(state, progress)
        self.store.export(self.seat.run, self.seat.home)
        self.bench.save(outcome.state.params, outcome.state.counters, self.seat.home / MODEL)
        return outcome

    def _hyper(self, round: int) -> dict[str, Any]:
        hyper: dict[str, Any] = self.config["training"].hyper(round)
        return hyper | riding(self.dp, self.rounds.rounds)

    def _promise(self, level: SiteLevel | None) -> None:
        """Says what differential privacy promises."""
        if self.dp is not None:
            lines, said = promised(self.dp, self.rounds.rounds, level)
            write_atomically(self.seat.home / PRIVACY, json.dumps(said, indent=2).encode())
            for line in lines:
                self._note(line)

    def _cohort(self, links: Links) -> LinkedCohort:
        layout, deadline, machines = self.bench.shared, self.rounds.deadline, self.file.runs.machines
        secure = self.secure
        self._note(announced(privacy_of(self.config), self.rounds, len(self.sites)))
        if secure is None:
            parts = self.strategy.parts(layout.size, layout.n_parameters)
            return LinkedCohort(links, self.sites, parts, layout, deadline, say=self._note, machines=machines)
        stream, transcript = fastest(time.perf_counter), Transcript(self.seat.home)
        ground = Ground(secure, self.roster, self.seat.epoch, transcript, stream)
        return SecureCohort(links, self.sites, ground, layout, deadline, say=self._note, machines=machines)

    def _assemble(self, links: Links) -> None:
        """Waits for all sites that do not decline; for a minute, where those that are here make a quorum.

        Raises:
            RunFailed: too many decline.
        """
        began, quorum = time.monotonic(), count(self.rounds.quorum, len(self.sites))
        while True:
            self._check_time()
            here, declined = links.present(), dict(self.inviter.declined)
            if here | declined.keys() >= set(self.sites) and len(here) >= quorum:
                break
            if len(self.sites) - len(declined.keys() - here) < quorum:
                why = "; ".join(f"{site}: {reason}" for site, reason in sorted(declined.items()))
                raise RunFailed(f"too few of {len(self.sites)} sites take part, the quorum is {quorum}: {why}")
            if time.monotonic() - began > ASSEMBLE and len(here) >= quorum:
                break
            time.sleep(LOOK / 10)
        self.say(f"{len(here)} of {len(self.sites)} sites are here")

    def _in_time(self, event: Event) -> None:
        """Listens to the run: it ends with the round in which its time is over."""
        if isinstance(event, RoundCommitted):
            self._check_time()

    def _check_time(self) -> None:
        longest = self.file.runs.max_duration
        if time.monotonic() - self.began > longest:
            raise RunFailed(f"the run has taken longer than {longest:g} s, [runs] max_duration in {SERVER_FILE}")

    @contextmanager
    def _inviting(self, links: Links) -> Iterator[None]:
        """Invites whoever is missing, as long as the block lasts; a resumed run first waits for living sessions."""
        done = threading.Event()

        def invite() -> None:
            if self.seat.epoch > 1:
                done.wait(ADOPT)
            store, told = Store(self.store.path), set[str]()
            while not done.is_set():
                try:
                    self.inviter.look(self.sites, links.present() | links.waiting().keys(), self._invitation)
                except Exception:  # our bug; whoever is missing must be invited all the same
                    traceback.print_exc()
                for site, why in self.inviter.declined.items():
                    if (line := f"{site} takes no part: {why}") not in told:
                        told.add(line)
                        store.event(self.seat.run, "declined", line, level="warning")
                for site, runs in self.inviter.busy.items():
                    if (line := f"{site} is busy with {in_words(runs)}; waiting") not in told:
                        told.add(line)
                        self.say(line)
                        store.event(self.seat.run, "busy", line)
                done.wait(LOOK)

        thread = threading.Thread(target=invite, name="inviting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(LOOK)

    def _invitation(self, site: str, node: int) -> dict[str, str | int]:
        run, epoch = self.seat.run, self.seat.epoch
        said = token(self.secret, run, site, node)
        at = {"server_name": session_name(run)} if self.file.server.public else {}
        return {"address": self.address, "run": run, "epoch": epoch, "token": said, **at}

    def _note(self, line: str) -> None:
        self.say(line)
        self.store.event(self.seat.run, "site", line)

    def _close(self, links: Links, line: str) -> None:
        """Tells every site that the run is over."""
        try:
            links.over(line)
            self.inviter.drain(DRAIN)
        finally:
            links.stop()  # else its threads keep this process, and its port

    def _leave(self, links: Links) -> None:
        """Ends this process: for good if the run was stopped, else its sites wait for the next start."""
        if self.store.entry(self.seat.run)["state"] == State.RUNNING:
            links.stop(grace=0.0)
        else:
            self._close(links, "the run was stopped")


def _kept(app: Path, home: Path) -> Path:
    """The app, kept with the run: a resumed start runs what the first one ran."""
    if not home.exists():
        with made(home) as folder:
            for name, content in app_files(app).items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
    return home


def _secret(path: Path) -> bytes:
    """The run's secret, made with its first start."""
    if not path.exists():
        write_folder(path.parent, {path.name: secrets.token_bytes(32)})
    return path.read_bytes()
