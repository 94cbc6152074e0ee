"""A worker process: it waits for orders, lets its sites work, and answers with one partial sum."""

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hansa.blame import own_code
from hansa.device import using_threads
from hansa.errors import UserError
from hansa.processes import die_with_parent
from hansa.records import Broadcast, Plan
from hansa.taskfile import load_again
from simulations.engines.arena import Arena, Message
from simulations.engines.partial import Own, partial
from simulations.engines.setting import Setting, Sites
from simulations.engines.siteloop import SiteLoop

Vector = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Order:
    """A plan and a worker's share of the sites asked; its vectors are the plan's broadcast."""

    plan: dict[str, Any]  # without the broadcast
    params: Vector
    counters: Vector
    shared: dict[str, Vector]
    asked: Sequence[str]

    @classmethod
    def of(cls, plan: Plan, asked: Sequence[str]) -> "Order":
        """A plan to some sites, of whose memory it names no other's."""
        sent = plan.broadcast
        fields = {name: value for name, value in vars(plan).items() if name in Plan.__dataclass_fields__}
        fields |= {"broadcast": None, "memory": {site: plan.memory[site] for site in asked if site in plan.memory}}
        shared = {name: vector.numpy() for name, vector in sent.shared.items()}
        return cls(fields, sent.params.numpy(), sent.counters.numpy(), shared, asked)

    def taken(self) -> Plan:
        """The plan, its vectors where they lie."""
        shared = {name: torch.from_numpy(vector) for name, vector in self.shared.items()}
        sent = Broadcast(torch.from_numpy(self.params), torch.from_numpy(self.counters), shared)
        return Plan(**{**self.plan, "broadcast": sent})


@dataclass(frozen=True)
class Ends:
    """A worker's ends of what it has in common with its parent."""

    orders: Connection
    down: Arena  # from the parent: the same for all workers
    up: Arena  # to the parent


def spawned(files: Sequence[Path], setting: bytes, ends: Ends, threads: int) -> None:
    """What a new process runs, which has nothing of its parent's: the user's files are loaded first."""
    load_again(files)
    found: Setting = pickle.loads(setting)
    serve(Sites(found, found.bench()), ends, threads)


def forked(sites: Sites, ends: Ends, others: Sequence[Connection], threads: int) -> None:
    """What a forked process runs: it has its parent's memory, and the parent's ends, which it closes."""
    for other in others:
        other.close()
    serve(sites, ends, threads)


def serve(sites: Sites, ends: Ends, threads: int) -> None:
    """Works until the parent is gone."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, which ends its workers
    own = Own()
    loop = SiteLoop(sites.setting, sites, own)
    with using_threads(threads), suppress(EOFError, BrokenPipeError):
        while True:
            ends.orders.send(answered(loop, own, ends, *ends.orders.recv()))


def answered(loop: SiteLoop, own: Own, ends: Ends, order: Message, mine: Sequence[str]) -> Message | Exception:
    """One partial sum, or what went wrong, told as it is told in one process."""
    setting = loop.setting
    try:
        taken: Order = ends.down.get(order)
        with own_code(type(setting.task), type(setting.strategy)):
            collector = loop.work(taken.taken(), taken.asked, mine)
        return ends.up.put(partial(collector, own.taken()))
    except UserError as error:
        return UserError(*error.problems)  # without what it came of, which may not pickle
    except Exception as error:
        return RuntimeError(f"in worker {os.getpid()}:\n{''.join(traceback.format_exception(error))}")
