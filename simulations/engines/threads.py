"""Worker threads: for models so heavy that Python is idle while they compute."""

import pickle
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hansa.errors import UserError
from hansa.records import Plan, Refusal, Reply
from server.cohort import Collector
from simulations.engines.base import Engine
from simulations.engines.partial import Own, Partial, merge, partial, replies
from simulations.engines.setting import Setting, Sites
from simulations.engines.shares import shares
from simulations.engines.siteloop import Report, SiteLoop

UNSEEDED = 'draws random numbers while it trains, from a generator that all threads share; take engine = "processes"'


class ThreadsEngine(Engine):
    """The plain loop's bits, for models that draw no random numbers: nothing is seeded, and what is drawn is found."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        number = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.workers, "hansa", initializer=lambda: torch.set_num_threads(number))
        self._stop = threading.Event()
        self._places = [self._place() for _ in range(self.workers)]
        self._rows: dict[str, float] = {}
        self._former: dict[str, int] = {}

    @classmethod
    def refuses(cls, setting: Setting) -> str | None:
        """What is seeded for each site, or lives beside the loop, cannot be shared by threads."""
        if setting.streams:
            return f"task {type(setting.task).__name__} has batches of its own, which draw from the global generator"
        if setting.private:
            return "DP-SGD seeds the global generator, which all threads share"
        if setting.loaders:
            return "[training] num_workers: processes that load rows cannot be started by several threads"
        return None if setting.device.type == "cpu" else "threads share one device's stream of work"

    def total(self, plan: Plan, asked: Sequence[str], present: Sequence[str]) -> Collector:
        """See Engine."""
        before, total = _generators(), self.setting.collector(plan, asked, self.halves.bench.shared)
        dealt = shares(present, self._rows, self._former, self.workers)
        work = [self._pool.submit(self._work, at, plan, asked, mine) for at, mine in enumerate(dealt) if mine]
        for one in as_completed(work):
            part = one.result()
            merge(total, part)
            for reply in replies(part):
                self._rows[reply.site] = float(reply.examples)
                self.report(plan, reply)
        if _generators() != before:
            raise UserError(f'[simulation] engine: "threads": task {type(self.setting.task).__name__} {UNSEEDED}')
        self._former.update((site, at) for at, mine in enumerate(dealt) for site in mine)
        return total

    def close(self) -> None:
        """Ends the threads, each after the site that it has in hand."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def _place(self) -> Sites:
        """The sites as one thread has them: on a bench of its own, with what they remember in common."""
        return self.halves.moved(replace(self.setting, seeding=_unseeded), self.setting.bench())

    def _work(self, at: int, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Partial:
        own = Own()
        collector = _Stoppable(self.setting, self._places[at], own, self._stop).work(plan, asked, mine)
        return partial(collector, own.taken())


class _Stoppable(SiteLoop):
    """The plain loop, which ends between two sites once the run has."""

    def __init__(self, setting: Setting, sites: Sites, report: Report, stop: threading.Event) -> None:
        super().__init__(setting, sites, report)
        self._stop = stop

    def answers(self, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Iterator[Reply | Refusal]:
        """See SiteLoop."""
        for answer in super().answers(plan, asked, mine):
            yield answer
            if self._stop.is_set():
                return


def _unseeded(*purpose: str | int) -> AbstractContextManager[None]:
    """In place of a seed: the global generators stay as they are, or what has drawn from them is found."""
    return nullcontext()


def _generators() -> tuple[bytes, bytes, Any]:
    """The states of all global generators."""
    return torch.get_rng_state().numpy().tobytes(), pickle.dumps(np.random.get_state()), random.getstate()
