"""A rank's process: it waits for orders on its socket, and ends with it."""

import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.failures import Failure
from clients.parallel.ranks import join, open_store
from clients.pipe import Pipe
from clients.worker import Place, Worker
from clients.workers.heartbeat import Heart
from hansa.errors import UserError
from hansa.wire.link_pb2 import Plan, Result

Answered = tuple[dict[str, Any], bytes]


class Voice:
    """What a rank says: its heart and its work share the socket."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._one = pipe, threading.Lock()

    def say(self, said: Mapping[str, Any], frame: bytes = b"") -> None:
        """Says something whole."""
        with self._one:
            self._pipe.send(said, frame)


def begin(said: Mapping[str, Any], voice: Voice) -> Worker:
    """Joins the others, if there are any, and makes what works.

    Args:
        said: the first order.
        voice: tells the supervisor where rank 0 has opened the store.
    """
    place, ranks = Place(Path(said["site"]), said["rank"], said["world"], said["local"]), None
    place.claim(said["run"])
    if place.parallel:
        store = None if place.rank else open_store(place.world, host=said["host"])
        if store is not None and place.world > 1:
            voice.say({"port": store.port})
        port = said["port"] if store is None else store.port
        patience = place.file.training.collective_timeout  # with ranks that live: of others the supervisor knows sooner
        ranks = join(place.rank, place.world, port, place.backend, host=said["host"], timeout=patience, store=store)
    return Worker(Path(said["app"]), place, said["run"], ranks)


def work(worker: Worker, said: Mapping[str, Any], frame: bytes) -> Result | Failure | None:
    """Does a plan."""
    files = {name: worker.folder / path for name, path in said["files"].items()}
    steps = None if said["steps"] is None else worker.folder / said["steps"]
    upload, key = worker.folder / said["upload"], bytes.fromhex(said["key"])
    return worker.handle(Plan.FromString(frame), files, upload, key, steps)


def main() -> None:
    """Serves the orders that come over the socket whose file descriptor is the one argument."""
    with socket.socket(fileno=int(sys.argv[1])) as ours, Pipe(ours) as pipe:
        worker: Worker | None = None
        voice = Voice(pipe)
        while (order := pipe.receive()) is not None:
            said, frame = order
            answer: Result | Failure | dict[str, Any] | None
            try:
                if worker is None:
                    Heart(voice.say, said["limit"])
                    worker = begin(said, voice)
                    answer = worker.ready(said["sums"])
                else:
                    answer = work(worker, said, frame)
            except UserError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                answer = Failure.APP if worker is None else Failure.INPUT
            except Exception:
                traceback.print_exc()
                answer = Failure.TRAINING
            voice.say(*_said(answer))


def _said(answer: Result | Failure | dict[str, Any] | None) -> Answered:
    match answer:
        case Failure():
            return {"failed": answer}, b""
        case Result():
            return {}, answer.SerializeToString()
        case _:
            return answer or {}, b""


if __name__ == "__main__":
    main()
