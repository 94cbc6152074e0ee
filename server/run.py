"""A run: rounds until the model is done, checkpointed so that it can be killed at any time."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hansa.errors import RunFailed, UserError
from hansa.metrics import value, values
from hansa.records import Aggregate, Plan, ServerState
from privacy.dp.terms import HYPER
from server.checkpoint import Best, Keeper, Progress
from server.cohort import Cohort, Rule, draw
from server.config import RoundsTable, count
from server.events import ALL, Event, Note, RoundCommitted, RoundEnded, RoundStarted, Scored, Values
from server.rounds import run_round
from server.sitelevel import SiteLevel
from strategies.base import Strategy


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the chosen model, and the round after which it stood."""

    state: ServerState
    round: int
    early: bool  # stopped by [rounds] patience


@dataclass
class Run:
    """The course of one run.

    Args:
        name: the run's id.
        seed: from which cohorts and, in simulation, all other draws come.
        rounds: [rounds].
        hyper: the hyper-parameters of a round.
        strategy: the algorithm.
        cohort: the sites.
        checkpoints: where rounds are committed; best models live there too.
        tell: gets every event.
        score: of a state on the task's server data, if it has any.
        site_level: the noise of site-level differential privacy, if the run has it.
    """

    name: str
    seed: int
    rounds: RoundsTable
    hyper: Callable[[int], Mapping[str, Any]]
    strategy: Strategy
    cohort: Cohort
    checkpoints: Keeper
    tell: Callable[[Event], None]
    score: Callable[[ServerState], Values] | None = None
    site_level: SiteLevel | None = None

    def go(self, state: ServerState, progress: Progress) -> Outcome:
        """Runs from a state to the end: the rounds that are left, the choice of the model, its test.

        Raises:
            RunFailed: more than `max_void` rounds in a row, or all, did not count; the checkpoint has the model so far.
            UserError: the model is to be chosen by validation and the sites have none.
        """
        while progress.round < self.rounds.rounds and not self._stale(progress):
            state, progress = self._train(state, progress)
        if progress.round and progress.void_in_a_row == progress.round:
            raise RunFailed(f"none of the {progress.round} rounds counted, nothing was learnt; the warnings say why")
        if progress.void:
            text = f"{progress.void} of the {progress.round} rounds did not count; the warnings say why"
            self.tell(Note(progress.round, "warning", text))
        early = self._stale(progress)
        progress = self._judge_last(state, progress)
        chosen, at = state, progress.round
        if self.rounds.keep == "best" and progress.best is not None:
            chosen, at = self.checkpoints.load_best(), progress.best.round
        self._ask(chosen, progress, at + 1, "evaluate", "test", self.cohort.sites)
        return Outcome(chosen, at, early)

    def _train(self, state: ServerState, progress: Progress) -> tuple[ServerState, Progress]:
        number = progress.round + 1
        after, aggregate, clip = self._ask(state, progress, number, "train", "valid", self._cohort(number))
        progress = self._judge(state, progress, aggregate)
        void = progress.void_in_a_row + 1 if aggregate.void else 0
        memory = progress.memory if aggregate.void else {**progress.memory, **aggregate.memory}
        lost = progress.void + bool(void)
        progress = replace(progress, round=number, void_in_a_row=void, void=lost, memory=memory, clip=clip)
        if self.score is not None:
            self.tell(Scored(number, "server", ALL, self.score(after)))
        self.checkpoints.save(after, progress)
        self.tell(RoundCommitted(number))
        if void > self.rounds.max_void:
            raise RunFailed(f"{void} rounds in a row did not count; the last: {aggregate.void}")
        return after, progress

    def _cohort(self, number: int) -> Sequence[str]:
        """The sites asked in a round."""
        sites = self.cohort.sites
        chosen = self.strategy.asks(sorted(sites), number)
        return chosen or draw(sites, count(self.rounds.sites_per_round, len(sites)), self.seed, number)

    def _ask(
        self,
        state: ServerState,
        progress: Progress,
        number: int,
        kind: Literal["train", "evaluate"],
        split: Literal["valid", "test"],
        asked: Sequence[str],
    ) -> tuple[ServerState, Aggregate, float | None]:
        """One plan, answered; with the clip of the rounds that follow, where it adapts."""
        hyper = merged(self.hyper(number), self.strategy, number)
        clip = progress.clip
        if self.site_level is not None:
            hyper |= self.site_level.hyper(clip)

        def noised(aggregate: Aggregate) -> Aggregate:
            nonlocal clip
            if self.site_level is not None:
                aggregate, clip = self.site_level.noised(plan, asked, aggregate)
            return aggregate

        sent = self.strategy.broadcast(state)
        plan = Plan(self.name, self.seed, number, kind, split, sent, hyper, progress.memory)
        self.tell(RoundStarted(plan, tuple(asked)))
        quorum = count(self.rounds.quorum, len(asked)) if kind == "train" else 1
        began = time.monotonic()
        state, aggregate = run_round(state, self.strategy, plan, self.cohort, asked, Rule(quorum), noised)
        seconds = time.monotonic() - began
        self._report(plan, aggregate)  # first: a round and all that it brought are entered at once
        self.tell(RoundEnded(plan, tuple(asked), aggregate, seconds))
        return state, aggregate, clip

    def _report(self, plan: Plan, aggregate: Aggregate) -> None:
        if aggregate.void and plan.kind == "train":
            self.tell(Note(plan.round, "warning", f"round {plan.round} does not count: {aggregate.void}"))
        if plan.kind == "train":
            for site, reason in aggregate.dropped.items():
                self.tell(Note(plan.round, "warning", f"{site} took no part: {reason}"))
        for warning in aggregate.warnings:
            self.tell(Note(plan.round, "warning", warning))
        for note in aggregate.notes:
            self.tell(Note(plan.round, "info", note))
        for split, shift in (("train", 0), (plan.split, 1)):
            sums = {n.split("/", 1)[1]: s for n, s in aggregate.sums.items() if n.startswith(f"{split}/")}
            if sums:
                self.tell(Scored(plan.round - shift, split, ALL, values(sums)))  # type: ignore[arg-type]

    def _judge(self, state: ServerState, progress: Progress, aggregate: Aggregate) -> Progress:
        """Whether the model that the sites have just scored on validation rows is the best so far."""
        if not self.rounds.chooses or not aggregate.sites:
            return progress
        monitored = aggregate.sums.get(f"valid/{self.rounds.monitor}")
        now = None if monitored is None else value(monitored)
        if now is None:
            names = ", ".join(n.removeprefix("valid/") for n in aggregate.sums if n.startswith("valid/"))
            if not names:
                mend = 'remove patience and set keep = "last", or let Task.valid_data give rows'
                raise UserError(f"[rounds]: no site has validation rows to choose the model by; {mend}")
            what = "is not among the validation metrics" if monitored is None else "is undefined on the validation rows"
            raise UserError(f"[rounds] monitor: {self.rounds.monitor!r} {what}; choose one of {names}")
        best, sign = progress.best, 1 if self.rounds.upwards else -1
        if not math.isfinite(now) or (best is not None and sign * now <= sign * best.value):
            return replace(progress, since_best=progress.since_best + 1)
        self.checkpoints.save_best(state)
        return replace(progress, best=Best(progress.round, now), since_best=0)

    def _stale(self, progress: Progress) -> bool:
        return self.rounds.patience is not None and progress.since_best >= self.rounds.patience

    def _judge_last(self, state: ServerState, progress: Progress) -> Progress:
        """Scores the last round's model, which no further round does."""
        _, aggregate, _ = self._ask(state, progress, progress.round + 1, "evaluate", "valid", self.cohort.sites)
        return progress if aggregate.void else self._judge(state, progress, aggregate)


def merged(hyper: Mapping[str, Any], strategy: Strategy, round: int) -> dict[str, Any]:
    """The hyper-parameters of a round with those that the strategy replaces.

    Raises:
        UserError: under [dp], one from which the noise is solved.
    """
    own = strategy.hyper(round)
    if HYPER in hyper and (fixed := sorted(own.keys() & {HYPER, "batch_size", "steps", "epochs"})):
        name = type(strategy).__name__
        raise UserError(
            f"[strategy] {name}: it sets {' and '.join(fixed)} by round, and [dp] solves its noise once for all "
            "rounds; remove one of them"
        )
    return {**hyper, **own}
