"""The control client: what Hansa asks of a running SuperLink.

Flower has no public Python interface for this, only its command line, which takes a second a call and needs a file in
the user's home. So this file alone imports Flower's inner modules; they are why flwr is pinned below 1.43.
"""

import hashlib
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower reads them
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import click
import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext

from hansa.errors import RunFailed, UserError
from hansa.flower import colourless
from server.launch import APP, Launch, read_launch, write_launch


class Unreachable(RunFailed):
    """No SuperLink answers."""


class Refused(RunFailed):
    """The SuperLink does not do what it was asked."""

    def __init__(self, error: FlowerError) -> None:
        super().__init__(" ".join(filter(None, [error.message, error.public_details])))
        self.code = error.code


@dataclass(frozen=True)
class Node:
    """A site's connection, as the SuperLink knows it."""

    id: int
    name: str
    key: bytes  # public, PEM
    online: bool


@dataclass(frozen=True)
class Standing:
    """How a Flower run stands."""

    over: bool
    details: str  # why, "" where there is nothing to say


class Control:
    """Calls to the SuperLink's control interface, which has no authentication and listens on loopback.

    Args:
        address: host:port.
        ca: the certificate that signed the SuperLink's, PEM.
        timeout: of a call, seconds.

    Raises:
        Unreachable: no answer, in any method.
        Refused: an error, in any method.
    """

    def __init__(self, address: str, ca: bytes, timeout: float = 3.0) -> None:
        context = ssl.create_default_context(cadata=ca.decode("ascii"))
        self._newest = _Newest()
        calls: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            self._newest,
        ]
        self._client = ControlHttpClient(f"https://{address}", interceptors=calls, verify=context, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, for which a stopping SuperLink would wait."""
        self._client.close()

    def cut(self) -> None:
        """Ends, from another thread, the call whose answer is being read."""
        self._newest.cut()

    def start(self, app: bytes, config: Mapping[str, str | int]) -> int:
        """Starts a run of an app, some keys of its configuration overridden; Flower's id of it."""
        fab = Fab(hash_str=hashlib.sha256(app).hexdigest(), content=app)
        with _telling():
            override = user_config_to_proto(dict(config))
            return self._client.StartRun(StartRunRequest(fab=fab, override_config=override)).run_id

    def stop(self, run: int) -> None:
        """Stops a run, if it is not over."""
        with _unless(ApiErrorCode.RUN_ALREADY_FINISHED, ApiErrorCode.RUN_ID_NOT_FOUND), _telling():
            self._client.StopRun(StopRunRequest(run_id=run))

    def standing(self, run: int) -> Standing | None:
        """How a run stands; None if there is no such run."""
        with _unless(ApiErrorCode.RUN_ID_NOT_FOUND), _telling():
            status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
            return Standing(status.status == "finished", status.details)
        return None

    def logs(self, run: int) -> Iterator[str]:
        """What the server's process of a run writes, until the run is over."""
        with _telling():
            for part in self._client.StreamLogs(StreamLogsRequest(run_id=run)):
                yield colourless(part.log_output)

    def nodes(self) -> list[Node]:
        """The registered sites."""
        with _telling():
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [
            Node(n.node_id, n.name, n.public_key, n.status == "online") for n in found if n.status != "unregistered"
        ]

    def register(self, name: str, key: bytes) -> None:
        """Lets a site in, by its public key (SPKI, PEM)."""
        with _telling():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        """Lets a site in no longer."""
        with _telling():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))


class _Newest(ProtobufClientInterceptor):
    """Remembers the newest answer."""

    def __init__(self) -> None:
        self._answer: httpx.Response | None = None

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        self._answer = call_next(context)
        return self._answer

    def cut(self) -> None:
        """Ends its connection, which wakes up whoever reads from it; to close it would not."""
        if self._answer is not None and (stream := self._answer.extensions.get("network_stream")) is not None:
            with suppress(OSError):
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text) or FlowerError(0, str(error))
        raise Refused(said) from error
    except httpx.TransportError as error:
        raise Unreachable(
            f"Flower's server does not answer ({error}); see superlink.log in the server's logs"
        ) from error


@contextmanager
def _unless(*codes: int) -> Iterator[None]:
    """Passes over a refusal that has one of these codes."""
    try:
        yield
    except Refused as error:
        if error.code not in codes:
            raise


def bundle(files: Mapping[str, bytes]) -> bytes:
    """An app's files as Flower ships them.

    Raises:
        UserError: Flower does not take them.
    """
    try:
        return build_fab_from_files(files)[0]
    except (ValueError, click.ClickException) as error:
        said = " ".join(str(getattr(error, "message", error)).split())
        raise UserError(f"the app cannot be shipped: {said}") from error


def begin(control: Control, run: Path) -> Launch:
    """Starts a run, or starts it again under the next epoch.

    Args:
        control: of the SuperLink.
        run: its folder, with the app in it.
    """
    before = read_launch(run) or Launch(0, None)
    launch = Launch(before.epoch + 1, before.flower_run, starting=True)
    write_launch(run, launch)  # first: whoever finds it knows that a start was under way
    if before.flower_run is not None:
        control.stop(before.flower_run)
    config: dict[str, str | int] = {"hansa-run": run.name, "hansa-epoch": launch.epoch}
    launch = Launch(launch.epoch, control.start((run / APP).read_bytes(), config))
    write_launch(run, launch)
    return launch
