"""A few steps of a few sites in a stack, held against the plain loop."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.linalg import vector_norm

from clients.trainer import moving
from hansa.records import Plan
from hansa.seeds import seeded
from hansa.task import output_of
from simulations.cohort.fit import Fit, stacks
from simulations.cohort.gradients import VmapGradients
from simulations.cohort.stack import stacked
from simulations.cohort.unfit import Unfit
from simulations.cohort.work import Work

STEPS = 2
NEAR = 1e-4  # relative difference: float32 in another order


def probe(fit: Fit, works: Sequence[Work]) -> None:
    """Compares the two ways on the first and the last of some sites that are alike.

    A model that draws, as dropout does, draws another stream in a stack; of such a one the gradients are compared as
    it is when it evaluates.

    Raises:
        Unfit: they differ, or the stack fails; the text says how.
    """
    few = [_short(work) for work in (works if len(works) < 2 else (works[0], works[-1]))]
    try:
        with seeded(0):
            before = torch.get_rng_state()
            runs = fit.runs(few)
            draws = not torch.equal(before, torch.get_rng_state())
        if draws:
            _compare_evaluating(fit, [_short(work) for work in few])
            return
        for work, run in zip(few, runs, strict=True):
            wanted, _ = work.half.fit(work.plan, work.begun)
            _compare(run.delta, wanted.delta, "the update")
            _compare(run.sums["loss"], wanted.sums["loss"], "the loss")
            if run.steps != wanted.steps or not torch.equal(run.counters, wanted.counters):
                raise Unfit("its steps or counters are not the loop's")
    except Unfit:
        raise
    except Exception as error:  # whatever it is: the loop can do it, or tells it as the user's
        raise Unfit((str(error).splitlines() or [type(error).__name__])[0]) from error
    finally:
        load(fit, works[0].plan)


def load(fit: Fit, plan: Plan) -> None:
    """Puts the round's model on the bench."""
    fit.bench.load(plan.broadcast.params, plan.broadcast.counters, {})


def _compare_evaluating(fit: Fit, works: Sequence[Work]) -> None:
    model, task = fit.bench.model.eval(), fit.task
    trained = moving(model, ("*",), ())
    params, buffers = (
        {name: stacks(t, len(works)) for name, t in tensors.items()}
        for tensors in (trained, dict(model.named_buffers()))
    )
    stack = stacked(task, works, fit.bench.device)
    _, grads = VmapGradients(task, model).step(params, buffers, stack, 0)
    for k, size in enumerate(stack.sizes[0].tolist()):
        loss = task.loss(*output_of(task, model, stack.batch([leaf[0, k, :size] for leaf in stack.leaves])))
        wanted = torch.autograd.grad(loss, list(trained.values()))
        for name, one in zip(trained, wanted, strict=True):
            _compare(grads[name][k], one, f"the gradient of {name}")


def _compare(found: Tensor, wanted: Tensor, what: str) -> None:
    far = float(vector_norm(found - wanted) / vector_norm(wanted).clamp_min(1e-30))
    if not far <= NEAR:
        raise Unfit(f"{what} differs by {far:.1e} of it from the loop's")


def _short(work: Work) -> Work:
    hyper = {key: value for key, value in work.plan.hyper.items() if key != "epochs"}
    return Work(work.half, replace(work.plan, hyper={**hyper, "steps": min(STEPS, work.steps)}), work.begun)
