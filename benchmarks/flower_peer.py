"""A plain Flower deployment on loopback for benchmarks: TLS, node authentication, apps of its own."""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # before Flower reads them

from flwr.cli.build import build_fab_from_files
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from hansa import identity

NODES = 2
APP = """
[project]
name = "flower-peer"
version = "1.0.0"
[tool.flwr.app]
publisher = "hansa"
[tool.flwr.app.components]
serverapp = "%(app)s:server"
clientapp = "%(app)s:client"
[tool.flwr.app.config]
size = 0
repeats = 1
nodes = 2
"""


def exchange(size: int, repeats: int) -> tuple[float, float]:
    """Seconds in which every node gets a vector and sends one, and those of an exchange of nothing.

    Args:
        size: bytes of the vector that each node gets, and of the one that it sends.
        repeats: of which the median counts.
    """
    with tempfile.TemporaryDirectory() as name:
        seconds = measured(Path(name), NODES, "flower_peer_app", size, repeats)
    return statistics.median(seconds["whole"]), statistics.median(seconds["nothing"])


def phase(nodes: int, parameters: int, rounds: int) -> float:
    """Seconds of one phase of a round, training or evaluation, under Flower's FedAvg with clients that do nothing."""
    with tempfile.TemporaryDirectory() as name:
        seconds = measured(Path(name), nodes, "flower_fedavg_app", parameters, rounds)
    return seconds["rounds"][0] / (2 * rounds)


def measured(folder: Path, nodes: int, app: str, size: int, repeats: int) -> dict[str, list[float]]:
    """What an app has measured, in a deployment of its own."""
    deployment = Deployment(folder, nodes)
    try:
        return deployment.run(app, size, repeats)
    finally:
        deployment.end()


class Deployment:
    """Flower's processes, in a folder of their own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes, self.processes = folder, nodes, dict[str, subprocess.Popen[bytes]]()
        self.result = folder / "result.json"
        now = datetime.now(UTC)
        authority = identity.make_authority("benchmark", now)
        own = identity.make_server(authority, ["127.0.0.1"], now)
        (folder / "ca.crt").write_bytes(authority.certificate)
        (folder / "tls.crt").write_bytes(own.certificate)
        (folder / "tls.key").write_bytes(own.key)
        (folder / "secret").write_bytes(secrets.token_bytes(32))
        self.keys = [identity.make_node_key() for _ in range(nodes)]
        for number, key in enumerate(self.keys):
            (folder / f"node-{number}").write_bytes(key.private)

    def run(self, app: str, size: int, repeats: int) -> dict[str, list[float]]:
        """Starts everything, runs the app, and returns the seconds that it has measured."""
        port = free_port()
        secret = ["--superexec-auth-secret-file", "secret"]
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "tls.crt", "--ssl-keyfile", "tls.key"]
        safe = ["--enable-supernode-auth", "--disable-runtime-dependency-installation", "--isolation", "process"]
        here = ["--host", "127.0.0.1", "--port", str(port)]
        self.start("superlink", *here, *tls, *safe, *secret, "--database", str(self.folder / "state.db"))
        there = ["--runtime-api-address", f"127.0.0.1:{port}", "--root-certificates", str(self.folder / "ca.crt")]
        self.start("superexec", *there, *secret)
        self.until(lambda: answers(port), 60)
        control = ControlHttpClient.from_server_address(
            server_address=f"127.0.0.1:{port}",
            insecure=False,
            root_certificates=(self.folder / "ca.crt").read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        for number, key in enumerate(self.keys):
            control.RegisterNode(RegisterNodeRequest(public_key=key.public.encode(), name=f"node-{number}"))
            own = ["--auth-supernode-private-key", f"node-{number}", "--host", "127.0.0.1", "--port", str(free_port())]
            link = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", "ca.crt"]
            self.start(f"supernode-{number}", *link, *own)
        self.until(lambda: online(control) == self.nodes, 60)
        code = (Path(__file__).parent / f"{app}.py").read_bytes()
        fab, _ = build_fab_from_files({"pyproject.toml": (APP % {"app": app}).encode(), f"{app}.py": code})
        config = user_config_to_proto({"size": size, "repeats": repeats, "nodes": self.nodes})
        content = Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)
        control.StartRun(StartRunRequest(fab=content, override_config=config))
        self.until(self.result.exists, 600)
        measured: dict[str, list[float]] = json.loads(self.result.read_text())
        return measured

    def start(self, name: str, *arguments: str) -> None:
        program = Path(sys.executable).parent / f"flower-{name.partition('-')[0]}"
        own = {"FLWR_HOME": str(self.folder / f"home-{name}"), "FLOWER_PEER_RESULT": str(self.result)}
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [program, *arguments],
                env={**os.environ, **own, "PATH": path},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def until(self, true: Callable[[], bool], seconds: float) -> None:
        """Waits, and says which process has ended or that it took too long."""
        end = time.monotonic() + seconds
        while not true():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended:\n{(self.folder / f'{name}.log').read_text()[-2000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"Flower took more than {seconds:.0f} s")
            time.sleep(0.1)

    def end(self) -> None:
        """Ends every process that was started here, and what those have started."""
        for process in reversed(self.processes.values()):
            stop(process, signal.SIGTERM)
        end = time.monotonic() + 5
        while any(process.poll() is None for process in self.processes.values()) and time.monotonic() < end:
            time.sleep(0.05)
        for process in self.processes.values():
            stop(process, signal.SIGKILL)
            process.wait()


def stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Signals the session that a process leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def online(control: ControlHttpClient) -> int:
    return sum(node.status == "online" for node in control.ListNodes(ListNodesRequest()).nodes_info)
