"""The server's control end: what people and sites ask the server for, as the gate passes it on.

`python -m server.control FOLDER` is kept running by `hansa server up`. It listens on a Unix socket that nobody else
reaches, and takes the gate's word for who calls. What a question and its answer are stands in `hansa.controlrules`.
"""

import asyncio
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hansa.controlrules import BEAT, BYTES, JSON_LINES, PATH
from hansa.errors import RunFailed, UserError
from hansa.roles import Role
from hansa.startup import SERVER_FILE
from hansa.swap import settle
from server.acts import Acts
from server.asking import Answer, Ask, Denied, Gone, Handler, Sent
from server.callers import Caller
from server.desk import CERTIFICATE, NAME, ROLE, at_socket
from server.roles import ACTS
from server.serverfile import load_server_file
from server.verbs import VERBS

MOST = 256  # questions that are answered at once; by one certificate, the gate lets fewer in
LONGEST = 60.0  # seconds that the digest of a file may take
CHUNK = 1 << 18  # bytes of a file that are sent at once


class Control:
    """Answers questions.

    Args:
        folder: the server's.
        verbs: what it does.
    """

    def __init__(self, folder: Path, verbs: Mapping[str, Handler]) -> None:
        self.folder, self.verbs, self.acts = folder, verbs, Acts(folder)
        self._busy = 0

    def app(self) -> Starlette:
        """As uvicorn takes it."""
        return Starlette(routes=[Route(f"{PATH}{{verb}}", self._serve, methods=["POST"])])

    async def _serve(self, request: Request) -> Response:
        caller, verb = _caller(request), request.path_params["verb"]
        if verb not in ACTS:
            raise HTTPException(404, "no such act here; update hansa at the server")
        if self._busy >= MOST:
            return _lines([_error(["the server has too much to answer just now; try again"], 1)])
        try:
            body = await _read(request, ACTS[verb].largest)
        except ClientDisconnect:
            return Response(status_code=400)
        answer = Answer()
        ask = Ask(self.folder, caller, verb, body, answer, self.acts)
        self._busy += 1
        threading.Thread(target=self._do, args=(ask,), name=verb, daemon=True).start()
        return _Answering(answer, "file" in body, self._over)

    def _over(self) -> None:
        self._busy -= 1

    def _do(self, ask: Ask) -> None:
        """Does what is asked, in a thread of its own; the last part of the answer is always a result or an error."""
        try:
            ask.answer.put(self._done(ask))
        except Gone:
            pass
        except RuntimeError:  # the event loop has ended
            pass

    def _done(self, ask: Ask) -> Mapping[str, Any] | Sent:
        try:
            ask.check_role()
            result = self.verbs[ask.verb](ask)
            if not ask.noted:
                raise AssertionError(f"{ask.verb} was done without a line in the record of acts")
            return result if isinstance(result, Sent) else {"result": result}
        except UserError as error:
            return _noted(ask, error.reason if isinstance(error, Denied) else "input", list(error.problems), 2)
        except RunFailed as failure:
            return _noted(ask, "failed", [str(failure)], 1)
        except Exception:
            with suppress(OSError):  # the log's disk may be full: an answer goes out all the same
                traceback.print_exc()
            return _noted(ask, "failed", ["the server could not do it; its log, control.log, says why"], 1)


class _Answering(Response):
    """Sends an answer.

    Args:
        answer: made elsewhere.
        waits: whether it may be a file, so that its head is not known before its first part.
        over: called when it is sent, or nobody reads on.
    """

    def __init__(self, answer: Answer, waits: bool, over: Callable[[], None]) -> None:
        self.answer, self.waits, self.over = answer, waits, over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await self.answer.next(LONGEST if self.waits else 0.0)
            if isinstance(first, Sent):
                response = StreamingResponse(_content(first), headers=_heads(first))
            else:
                response = StreamingResponse(self._lines(first), media_type=JSON_LINES)
            await response(scope, receive, send)
        finally:
            self.answer.close()
            self.over()

    async def _lines(self, part: Mapping[str, Any] | Sent) -> AsyncIterator[bytes]:
        while not isinstance(part, Sent):
            yield _line(part)
            if part.keys() & {"result", "error"}:
                return
            part = await self.answer.next(BEAT)


def _noted(ask: Ask, reason: str, lines: list[str], code: int) -> Mapping[str, Any]:
    """An error, entered into the record unless it came after the permission."""
    try:
        if not ask.noted:
            ask.note(reason)
    except RunFailed as failure:
        with suppress(OSError):  # the log may lie on the same full disk
            print(f"{ask.acts.path}: the record cannot be written: {failure.__cause__}", file=sys.stderr, flush=True)
        lines = [str(failure)]
    return _error([ask.outward(line) for line in lines], code)


def _caller(request: Request) -> Caller:
    """Who calls, as the gate says."""
    said = [request.headers.getlist(name.decode()) for name in (ROLE, NAME, CERTIFICATE)]
    if any(len(one) != 1 for one in said):
        raise HTTPException(400)
    (role,), (name,), (certificate,) = said
    return Caller(Role(role), name, certificate)


async def _read(request: Request, largest: int) -> dict[str, Any]:
    taken = bytearray()
    async for data in request.stream():
        taken += data
        if len(taken) > largest:
            raise HTTPException(413, "a question that is too long")
    try:
        body = json.loads(taken, parse_constant=_no_number)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "no question that this server can read; update hansa at both ends")
    return body


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _error(lines: list[str], code: int) -> dict[str, Any]:
    return {"error": lines, "code": code}


def _line(part: Mapping[str, Any]) -> bytes:
    return json.dumps(part, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _lines(parts: list[dict[str, Any]]) -> Response:
    return Response(b"".join(map(_line, parts)), media_type=JSON_LINES)


async def _content(sent: Sent) -> AsyncIterator[bytes]:
    with sent.path.open("rb") as file:
        file.seek(sent.offset)
        left = sent.size - sent.offset
        while left and (data := await asyncio.to_thread(file.read, min(left, CHUNK))):
            left -= len(data)
            yield data


def _heads(sent: Sent) -> dict[str, str]:
    return {"content-length": str(sent.size - sent.offset), "content-type": BYTES}


@contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    """The socket that the gate reaches, in a server's folder; only this user does, since only he reaches the folder."""
    with at_socket(folder) as path, socket.socket(socket.AF_UNIX) as end:
        Path(path).unlink(missing_ok=True)
        end.bind(path)
        os.chmod(path, 0o600)
        end.listen(MOST)
        yield end


def settings(control: Control) -> uvicorn.Config:
    """How uvicorn serves it."""
    return uvicorn.Config(
        control.app(),
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


def serve(folder: Path) -> None:
    """Serves a server's folder until a signal ends it.

    Raises:
        UserError: the folder is not in order.
    """
    load_server_file(folder / SERVER_FILE)
    settle(folder)  # the one before may have been killed in the middle of a change
    with listening(folder) as end:
        uvicorn.Server(settings(Control(folder, VERBS))).run([end])


if __name__ == "__main__":
    try:
        serve(Path(sys.argv[1]))
    except (UserError, OSError) as problem:
        sys.exit(f"error: {problem}")
