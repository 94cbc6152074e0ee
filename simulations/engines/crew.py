"""Worker processes that stay for the whole run."""

import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, Protocol

import torch

from hansa.errors import RunFailed, UserError
from hansa.taskfile import loaded
from simulations.engines.arena import Arena, Message
from simulations.engines.member import Ends, Order, forked, spawned
from simulations.engines.partial import Partial
from simulations.engines.setting import Setting, Sites
from simulations.engines.shares import told

Start = Literal["fork", "spawn"]
DEATHS = 2  # of workers, on one share, after which the run ends


class Workers(Protocol):
    """Who works for an engine: long-lived, each with a share of the sites asked and one partial sum to give."""

    def sums(self, order: Order, dealt: Sequence[Sequence[str]]) -> Iterator[Partial]:
        """The workers' partial sums as they come; one holds only until the next is asked for."""
        ...

    def close(self) -> None:
        """Ends the workers at once."""
        ...


@dataclass
class Member:
    """A worker as its parent sees it."""

    process: BaseProcess
    orders: Connection
    up: Arena


class Crew:
    """Workers, each of whom gets a share of the sites asked and gives one partial sum.

    Args:
        sites: of this process; forked workers begin with them as they are.
        number: of workers.
        threads: of torch, in each.
        start: how they are started.
        down, up: bytes of a plan's vectors, and of a partial sum.
    """

    def __init__(self, sites: Sites, number: int, threads: int, start: Start, down: int, up: int) -> None:
        self._sites, self._threads, self._start, self._size = sites, threads, start, up
        fork = start == "fork"
        self._context = multiprocessing.get_context("fork") if fork else multiprocessing.get_context("spawn")
        self._down = Arena(down, named=not fork)
        self._setting = b"" if fork else pickled(sites.setting)
        self._members: list[Member] = []
        try:
            for _ in range(number):
                self._members.append(self._started(Arena(up, named=not fork)))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int | None]:
        """The workers' process ids."""
        return [one.process.pid for one in self._members]

    def sums(self, order: Order, dealt: Sequence[Sequence[str]]) -> Iterator[Partial]:
        """The workers' partial sums as they come; one holds only until the next is asked for.

        A worker that died is replaced, and its sites are computed again: nothing of them was counted.

        Raises:
            UserError: what a worker says of the task, the strategy or the data.
            RunFailed: workers died again and again on one share.
        """
        message = self._down.put(order)
        at_work = {at: 0 for at, mine in enumerate(dealt) if mine}
        for at in at_work:
            self._order(at, message, dealt[at])
        while at_work:
            for at in self._heard(list(at_work)):
                answer = self._answer(at)
                if answer is None:
                    at_work[at] += 1
                    self._replace(at, at_work[at], dealt[at])
                    self._order(at, message, dealt[at])
                elif isinstance(answer, Exception):
                    raise answer
                else:
                    del at_work[at]
                    yield self._members[at].up.get(answer)

    def close(self) -> None:
        """Ends the workers at once: between rounds they have nothing to lose, within one it is no longer wanted."""
        for one in self._members:
            one.process.kill()
        for one in self._members:
            one.process.join()
            one.orders.close()
            one.up.close()
        self._members = []
        self._down.close()

    def _heard(self, busy: list[int]) -> list[int]:
        """The workers that have answered or died."""
        ends = {key: at for at in busy for key in (self._members[at].orders, self._members[at].process.sentinel)}
        return sorted({ends[one] for one in wait(list(ends))})  # type: ignore[index]  # what was given comes back

    def _order(self, at: int, message: Message, mine: Sequence[str]) -> None:
        with suppress(BrokenPipeError):  # it has died, which is noticed when it is heard
            self._members[at].orders.send((message, mine))

    def _answer(self, at: int) -> Message | Exception | None:
        """What a worker said; None: it has died."""
        try:
            one = self._members[at].orders
            answer: Message | Exception | None = one.recv() if one.poll() else None
        except (EOFError, OSError):
            return None
        return answer

    def _replace(self, at: int, deaths: int, mine: Sequence[str]) -> None:
        old = self._members[at]
        old.process.join()
        old.orders.close()
        if deaths >= DEATHS:
            code = old.process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            mend = "is there memory enough? take fewer [simulation] workers"
            raise RunFailed(f"worker {at + 1} of {len(self._members)} died ({how}) again on sites {told(mine)}; {mend}")
        self._members[at] = self._started(old.up)

    def _started(self, up: Arena) -> Member:
        here, there = self._context.Pipe()
        ends = Ends(there, self._down, up)
        daemon = not self._sites.setting.loaders  # a daemon may have no children
        if self._start == "fork":
            others = [here, *(one.orders for one in self._members if not one.orders.closed)]
            arguments = (self._sites, ends, others, self._threads)
            process = self._context.Process(target=forked, args=arguments, daemon=daemon)
        else:
            process = self._context.Process(
                target=spawned, args=(loaded(), self._setting, ends, self._threads), daemon=daemon
            )
        with warnings.catch_warnings():
            # Python warns of threads, whose locks a fork may find taken: those of the numerical libraries wait idle.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            process.start()
        there.close()
        return Member(process, here, up)


def way_to_start(threads: int) -> Start:
    """How workers are started here: a fork is fast, but may not follow an accelerator or a pool of threads in use."""
    fast = sys.platform == "linux" and hasattr(os, "fork") and threads == 1
    return "fork" if fast and not torch.accelerator.is_available() else "spawn"


def pickled(setting: Setting) -> bytes:
    """What is simulated, for processes that start with nothing.

    Raises:
        UserError: the task, say, cannot be sent.
    """
    try:
        return pickle.dumps(setting)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        mend = 'define its classes and functions at the top of a file, or take engine = "loop"'
        raise UserError(f"[simulation] engine: the task cannot be sent to another process: {error}; {mend}") from error
