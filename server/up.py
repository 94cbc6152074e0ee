"""What `hansa server up` does: keeps Flower's two processes of the server machine running, and its runs going."""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT, SIGTERM

from hansa.address import as_ip, is_loopback, join, split
from hansa.errors import RunFailed, UserError, reason
from hansa.flower import environment, free_port, port_taken, program, shown
from hansa.startup import CA, SERVER_FILE, SUPEREXEC_SECRET, TLS_CERTIFICATE, TLS_KEY, read, read_startup
from hansa.supervise import Child, Program, Supervisor
from server.admission import Admission, admit
from server.command import check_server
from server.desk import at_socket
from server.flower import Control, Refused, Unreachable
from server.renewal import endings
from server.revive import Reviver
from server.serverfile import ServerFile, load_server_file

PATIENCE = 120.0  # seconds that the SuperLink may take until it answers
LOOK = 0.25  # seconds between two looks at the runs
PORTS = 5  # ports that are tried where any will do

Say = Callable[[str], None]


def up(folder: Path, say: Say) -> None:
    """Runs the server until a signal stops it.

    Args:
        folder: the server's.
        say: shows a line.

    Raises:
        UserError: the folder is not in order, its address is taken, or a server runs on it already.
        RunFailed: a process cannot be kept running.
    """
    folder = folder.resolve()
    check_server(folder)
    file, startup = load_server_file(folder / SERVER_FILE), read_startup(folder, datetime.now(UTC))
    read(folder, SUPEREXEC_SECRET)
    for line in endings(folder, startup.roster, datetime.now(UTC)):
        say(line)
    (folder / "flower").mkdir(mode=0o700, exist_ok=True)
    env = {**environment(folder / "flower", file.flower.telemetry), "HANSA_SERVER": str(folder)}
    with Supervisor(folder, "server", say, env) as supervisor, _superlink(supervisor, file, startup.ca) as link:
        admit(link.control, startup.roster, say)
        supervisor.tell(address=link.address)
        if file.server.public:
            _start_control(supervisor)
            at = _start_gate(supervisor, file.server.public, link.address)
            supervisor.tell(public=at)
            _await_ends(supervisor, at)
        reviver = Reviver(folder / "runs", link.control, say, file.runs.auto_resume)
        admission = Admission(folder, link.control, say, startup.roster)
        supervisor.at_stop.append(lambda: _leave(link, startup.ca, reviver))
        for line in _introduction(supervisor, link.address, file.server.reached):
            say(line)
        while True:
            supervisor.wait(LOOK)
            reviver.look()
            admission.look()


@dataclass(frozen=True)
class Link:
    """The running SuperLink."""

    address: str  # as this machine reaches it
    control: Control


@contextmanager
def _superlink(supervisor: Supervisor, file: ServerFile, ca: bytes) -> Iterator[Link]:
    """Starts the SuperLink, and what starts the runs for it."""
    host, port = split(file.server.flower)
    for _ in range(PORTS if port == 0 else 1):
        at = port or free_port(host)
        address = join(_reached(host), at)
        link = supervisor.start(_link(supervisor.folder, host, at))
        with Control(address, ca) as control:
            if _answers(supervisor, control, link):
                supervisor.start(_starter(supervisor.folder, address))  # sooner, it would wait longer and longer
                yield Link(address, control)
                return
        supervisor.drop(link)
    raise UserError(f"server.toml [server] flower: {join(host, at)} is taken by another process; choose another port")


def _answers(supervisor: Supervisor, control: Control, link: Child) -> bool:
    """Waits until the SuperLink answers; False if its port is taken."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        supervisor.wait(0.1)
        if port_taken(link.last_words):
            return False
        with suppress(Unreachable, Refused):
            control.nodes()
            return link.pid is not None
    raise RunFailed(f"SuperLink did not answer within {PATIENCE:g} s; see {link.log.path}")


def _link(folder: Path, host: str, port: int) -> Program:
    command = [program("flower-superlink"), "--host", host, "--port", str(port), "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(folder / CA), "--ssl-certfile", str(folder / TLS_CERTIFICATE)]
    command += ["--ssl-keyfile", str(folder / TLS_KEY), "--disable-runtime-dependency-installation"]
    command += ["--isolation", "process", "--database", str(folder / "flower" / "state.db")]
    command += ["--superexec-auth-secret-file", str(folder / SUPEREXEC_SECRET)]
    # It waits without end for open connections; SIGINT after SIGTERM cuts them. By then the runs have said goodbye.
    return Program("SuperLink", command, shown=shown, stop=((1.2, SIGTERM), (1.4, SIGINT)))


def _starter(folder: Path, address: str) -> Program:
    command = [program("flower-superexec"), "--runtime-api-address", address]
    command += ["--root-certificates", str(folder / CA), "--superexec-auth-secret-file", str(folder / SUPEREXEC_SECRET)]
    return Program("Starter", command, shown=shown)


def _start_gate(supervisor: Supervisor, public: str, superlink: str) -> str:
    """Starts the gate; where it listens.

    Raises:
        UserError: it cannot.
    """
    host, port = split(public)
    try:
        at = join(host, free_port(host, port))
    except OSError as error:
        mend = "choose another port, or an address of this machine's"
        raise UserError(f"server.toml [server] public: cannot listen on {public}: {reason(error)}; {mend}") from None
    command = [sys.executable, "-P", "-m", "server.gate", str(supervisor.folder), at, superlink]
    supervisor.start(Program("Gate", command))
    return at


def _start_control(supervisor: Supervisor) -> None:
    """Starts the control end, on a socket that only this user reaches."""
    (supervisor.folder / "run").chmod(0o700)
    supervisor.start(Program("Control", [sys.executable, "-P", "-m", "server.control", str(supervisor.folder)]))


def _await_ends(supervisor: Supervisor, gate: str) -> None:
    """Waits until the control end and the gate take connections.

    Raises:
        RunFailed: they do not.
    """
    host, port = split(gate)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + PATIENCE
    with at_socket(supervisor.folder) as control:
        for kind, address in ((socket.AF_UNIX, control), (family, (_reached(host), port))):
            while not _takes_connections(kind, address):
                if time.monotonic() > deadline:
                    raise RunFailed(f"the server's gate did not answer within {PATIENCE:g} s; see its logs")
                supervisor.wait(0.1)


def _takes_connections(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as probe, suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(address)
        return True
    return False


def _reached(host: str) -> str:
    """Where this machine reaches what listens on a host."""
    ip = as_ip(host)
    if ip is None or not ip.is_unspecified:
        return host
    return "127.0.0.1" if ip.version == 4 else "::1"


def _introduction(supervisor: Supervisor, address: str, reached: str | None) -> Iterator[str]:
    link, starter = (supervisor.children[name].pid for name in ("SuperLink", "Starter"))
    yield f"SuperLink on {address}, pid {link}; starter of runs, pid {starter}; logs in {supervisor.folder / 'logs'}"
    if not is_loopback(split(address)[0]):
        yield f"warning: whoever reaches {address} may start and stop runs; let only a proxy reach it, see server.toml"
    if reached:
        yield f"gate, pid {supervisor.children['Gate'].pid}; sites reach this server at {reached}"
    yield "ready; Ctrl-C stops it"


def _leave(link: Link, ca: bytes, reviver: Reviver) -> None:
    link.control.close()  # the SuperLink would wait for it
    with Control(link.address, ca, timeout=1.0) as control:
        reviver.leave(control)
