"""One round. It does not know whether the sites are simulated or deployed."""

from collections.abc import Sequence
from dataclasses import replace

from hansa.records import Aggregate, Plan, ServerState
from server.cohort import Cohort, Rule
from strategies.base import Strategy


def run_round(
    state: ServerState, strategy: Strategy, plan: Plan, cohort: Cohort, sites: Sequence[str], rule: Rule
) -> tuple[ServerState, Aggregate]:
    """Asks the sites, adds up what they answer, and takes the strategy's step.

    A round that does not count (`aggregate.void` says why) leaves the state as it was.
    """
    cohort.ask(plan, sites)
    aggregate = cohort.collect(rule)
    if plan.kind == "evaluate" or aggregate.void:
        return state, aggregate
    state = strategy.step(state, aggregate.mean, aggregate.share)
    if aggregate.counters is not None:
        state = replace(state, counters=aggregate.counters)  # integer buffers are never averaged: the largest wins
    return state, aggregate
