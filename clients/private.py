"""A plan under differential privacy at a site: how it is trained, and what of the answer leaves."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from clients.dpsgd import DpTrainer
from clients.poisson import PoissonBatches, rows_of_units
from clients.rowwise import Way
from clients.split import groups_of
from clients.trainer import Trainer
from hansa.errors import UserError
from hansa.metrics import ratio
from hansa.records import Plan, Reply
from hansa.task import Dataset, Task
from privacy.dp.adaptive import BIT, bit
from privacy.dp.randomness import Stream
from privacy.dp.sitewise import clipped
from privacy.dp.terms import DpTerms, mechanism_for, terms_in, weight_of
from strategies.base import Strategy


@dataclass(frozen=True)
class Drawn:
    """A train plan by DP-SGD: batches that are drawn, and a trainer that clips and adds noise."""

    batches: PoissonBatches
    trainer: DpTrainer


def drawn(
    terms: DpTerms, trainer: Trainer, strategy: Strategy, task: Task, train: Dataset, key: bytes, workers: int, way: Way
) -> Drawn:
    """What a site trains with, where its unit is the record or the group.

    Args:
        terms: of the plan.
        trainer: as it would be without.
        strategy: the algorithm.
        task: the user's.
        train: the site's training rows.
        key: 32 bytes, for this plan alone.
        workers: processes that load rows.
        way: to the gradients of units, as the task was tried on the model that the run started with.

    Raises:
        UserError: the strategy or the task cannot be trained so; see `mechanism_for`.
    """
    if type(strategy).local_update is not Strategy.local_update:
        raise UserError(
            f"[strategy] {type(strategy).__name__}: it trains in its own way, which DP-SGD cannot clip; take fedavg, "
            'fedprox or scaffold, or unit = "site"'
        )
    groups = groups_of(train)
    mechanism = mechanism_for(terms, trainer.hyper, len(train), None if groups is None else len(torch.unique(groups)))
    units = rows_of_units(groups.tolist()) if terms.unit == "group" and groups is not None else None
    stream = Stream(key)
    batches = PoissonBatches(task, train, mechanism, stream, trainer.device, units, workers)
    return Drawn(batches, DpTrainer(**vars(trainer), mechanism=mechanism, stream=stream, way=way))


def released(plan: Plan, reply: Reply, say: Callable[[str], None] = lambda line: None) -> Reply:
    """What of a site's answer may leave: under differential privacy the update, at a public weight, and no metric.

    Of a site that is protected as a whole, the update is clipped here, in place. Integer buffers go back as they came.

    Args:
        plan: that was answered.
        reply: all that the site knows.
        say: a line for the site's own log.
    """
    terms = terms_in(plan.hyper)
    if terms is None:
        return reply
    sums = {}
    if terms.unit == "site" and plan.kind == "train":
        clipping = clipped(reply.upload, terms.clip)
        if clipping.remark:
            say(f"round {plan.round}: {clipping.remark}")
        if terms.adaptive is not None:
            sums[BIT] = ratio(bit(clipping), 1)
    counters = None if reply.counters is None else plan.broadcast.counters
    return replace(reply, examples=weight_of(terms, reply.site), counters=counters, sums=sums)
