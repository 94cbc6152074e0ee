"""One round. It does not know whether the sites are simulated or deployed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hansa.errors import UserError
from hansa.records import Aggregate, Plan, ServerState
from server.cohort import Cohort, Rule
from server.firewall import finite
from strategies.base import Strategy


def run_round(
    state: ServerState,
    strategy: Strategy,
    plan: Plan,
    cohort: Cohort,
    sites: Sequence[str],
    rule: Rule,
    noised: Callable[[Aggregate], Aggregate] = lambda aggregate: aggregate,
) -> tuple[ServerState, Aggregate]:
    """Asks the sites, adds up what they answer, and takes the strategy's step.

    A round that does not count (`aggregate.void` says why) leaves the state as it was. `noised` comes before all that
    looks at what was trained.
    """
    cohort.ask(plan, sites)
    aggregate = cohort.collect(rule)
    if plan.kind == "evaluate" or aggregate.void:
        return state, aggregate
    aggregate = noised(aggregate)
    before, state = state, stepped(state, strategy, aggregate)
    if not finite(state.params):
        return before, replace(aggregate, void="the strategy's step made the model infinite")
    if aggregate.counters is not None:
        state = replace(state, counters=aggregate.counters)  # integer buffers are never averaged: the largest wins
    return state, aggregate


def stepped(state: ServerState, strategy: Strategy, aggregate: Aggregate) -> ServerState:
    """The state after the strategy's step.

    Raises:
        UserError: it is none, or holds no model of the same size.
    """
    after: object = strategy.step(state, aggregate.mean, aggregate.share)
    params = after.params if isinstance(after, ServerState) else None
    if not isinstance(after, ServerState) or not isinstance(params, Tensor) or params.shape != state.params.shape:
        got = f"params of shape {list(params.shape)}" if isinstance(params, Tensor) else type(after).__name__
        mend = f"return a ServerState with params of shape {list(state.params.shape)}"
        raise UserError(f"[strategy] {type(strategy).__name__}: step gave {got}; {mend}")
    return after if params.dtype == torch.float32 else replace(after, params=params.float())
