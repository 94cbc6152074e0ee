"""W ranks that stay: run as `pool.py W`, it does the orders that come by standard input, one a line.

Started once for many tests, since starting is what takes the time. What a rank is told is a case's name and arguments;
rank 0's answer is written out, or the first error. After an error the ranks go on only if all of them had one.
"""

import json
import os
import socket
import sys
import traceback
from typing import Any, TextIO

import torch

from clients.parallel.ranks import join, open_store
from hansa.errors import UserError
from tests.clients.parallel import cases


def rank(number: int, world: int, lines: TextIO, out: TextIO) -> None:
    torch.set_num_threads(1)
    store = open_store(world) if number == 0 else None
    if store is not None:
        print(store.port, file=out, flush=True)
    ranks = join(number, world, int(lines.readline()), store=store, timeout=240)
    for line in lines:
        name, arguments = json.loads(line)
        try:
            said: dict[str, Any] = {"found": getattr(cases, name)(ranks, **arguments)}
        except UserError as error:
            said = {"refused": str(error)}
        except Exception:
            said = {"error": traceback.format_exc()}
        print(json.dumps(said), file=out, flush=True)
    ranks.leave()
    os._exit(0)


def main() -> None:
    world = int(sys.argv[1])
    ends: list[socket.socket] = []
    for number in range(world):
        ours, theirs = socket.socketpair()
        if not os.fork():
            for end in ends:
                end.close()
            ours.close()
            rank(number, world, theirs.makefile("r"), theirs.makefile("w"))
        theirs.close()
        ends.append(ours)
    files = [(end.makefile("w"), end.makefile("r")) for end in ends]
    port = files[0][1].readline()
    for into, _ in files:
        into.write(port)
        into.flush()
    for order in sys.stdin:
        for into, _ in files:
            into.write(order)
            into.flush()
        answers = [json.loads(out.readline()) for _, out in files]
        errors = [one for one in answers if "error" in one]
        print(json.dumps(errors[0] if errors else answers[0]), flush=True)


if __name__ == "__main__":
    main()
