"""`engine = "auto"`: each engine is tried on a few sites, held against the plain loop, and the fastest is taken."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.choose import choose, known
from hansa.errors import UserError
from hansa.records import Aggregate, Plan
from privacy.dp.terms import HYPER
from server.cohort import Rule
from simulations.engines.base import Engine
from simulations.engines.loop import LoopEngine
from simulations.engines.setting import Setting, Sites

AUTO = "auto"
LITTLE = 3.0  # seconds of the plain loop below which nothing is tried: there is too little to gain
STEPS = 4  # of local training in a try
SITES = 32  # at most in a try, and so many that the loop takes LONG
LONG = 0.3  # seconds
GAIN = 1.15  # times the plain loop's speed without which the loop is kept
TIMED = 2  # times that a try is timed; the best counts
LEAST = 3  # sites, without which secure aggregation sums nothing


@dataclass(frozen=True)
class Choice:
    """An engine by name, and why it was taken, in one line."""

    engine: str
    why: str


@dataclass(frozen=True)
class Trial:
    """What is tried: a few sites and steps of a run's first round.

    Args:
        setting: what is simulated.
        halves: the sites of this process.
        plan: of the first round.
        asked: the sites of that round.
        rounds: of the run.
        workers: that work at once.
    """

    setting: Setting
    halves: Sites
    plan: Plan
    asked: Sequence[str]
    rounds: int
    workers: int

    def choice(self) -> Choice:
        """The fastest engine that gives what the plain loop gives."""
        few, seconds = self._few()
        if seconds < LITTLE:
            return Choice("loop", f"there is about {max(seconds, 0.1):.1f} s of work, too little to share")
        wanted, base = self._tried(LoopEngine, few)
        speeds, out = {"loop": base}, []
        for name in known("engines", Engine):
            kind = choose("engines", name, Engine)
            if not kind.suits(self.setting):
                continue
            reason = kind.refuses(self.setting)
            if reason is None:
                try:
                    found, speed = self._tried(kind, few)
                    reason = kind.differs(found, wanted)
                except Exception as error:  # whatever it is: the loop can do it
                    reason = (str(error).splitlines() or [type(error).__name__])[0]
            if reason is None:
                speeds[name] = speed
            else:
                out.append(f"{name} is out: {reason}")
        best = max(speeds, key=lambda name: speeds[name] * (GAIN if name == "loop" else 1.0))
        told = ", ".join(f"{name} {speed:.3g}" for name, speed in speeds.items())
        return Choice(best, "; ".join([f"sites a second, tried on {len(few)}: {told}", *out]))

    def _few(self) -> tuple[list[str], float]:
        """Sites to try on, and about how many seconds the plain loop would take for the whole run."""
        first = self.asked[0]
        _, speed = self._tried(LoopEngine, [first])
        once = 1 / speed
        number = min(len(self.asked), SITES, max(LEAST, 2 * self.workers, int(LONG / once)))
        few = list(self.asked[:: len(self.asked) // number][:number])
        for site in few:
            self.halves[site].counted()  # reads its rows, which stay at hand
        return few, once * max(1.0, self._steps(first) / STEPS) * len(self.asked) * self.rounds

    def _steps(self, site: str) -> int:
        hyper, rows = self.plan.hyper, self.halves[site].counted()["rows"]
        if "steps" in hyper:
            return int(hyper["steps"])
        return int(hyper["epochs"]) * -(-(rows or 1) // int(hyper["batch_size"]))

    def _tried(self, kind: type[Engine], sites: Sequence[str]) -> tuple[Aggregate, float]:
        """What an engine gives, and how many sites it computes in a second, once it has begun."""
        with tempfile.TemporaryDirectory(prefix="hansa-") as scratch:
            setting = replace(self.setting, memory=Path(scratch), durable=False)
            with kind(setting, self.halves.moved(setting), self.workers) as engine:
                engine.ask(self._short(), sites)
                found, times = engine.collect(Rule(1)), []
                if engine.left is not None:  # it is the loop by another name
                    raise UserError(engine.left)
                for _ in range(TIMED):
                    began = time.perf_counter()
                    engine.collect(Rule(1))
                    times.append(time.perf_counter() - began)
                return found, len(sites) / min(times)

    def _short(self) -> Plan:
        """The plan with a few steps; whole under differential privacy, which solves its noise for the plan's steps."""
        hyper = dict(self.plan.hyper)
        if HYPER not in hyper:
            epochs = hyper.pop("epochs", None)
            hyper["steps"] = STEPS if epochs is not None else min(STEPS, hyper["steps"])
        return replace(self.plan, hyper=hyper)
