"""What DP-SGD asks of a task before the first step: that each row stands alone, so that clipping bounds what it does.

A few of the site's own rows are tried: rows that are exchanged must move neither what the model says of others nor its
buffers, and the loss of rows together must be the mean of their losses. The parameters are shaken meanwhile: where an
initial weight is zero, rows seem to be apart that are not.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from clients.gradients import Loss, Moving, UnitGradients, Vectorised
from clients.layers import Layers
from clients.rowloss import RowLoss
from clients.trainer import moving
from hansa.errors import UserError
from hansa.evaluate import to_device
from hansa.metrics import mean_loss
from hansa.seeds import seeded
from hansa.task import Dataset, Task, collate, output_of

PROBED = 5  # rows
TRIES = 32  # seeds for a transform, which may mix rows only now and then
NEAR = 1e-3  # relative: float32 in another order


@dataclass(frozen=True)
class Way:
    """How a model's rows come to their gradients."""

    kind: type[Layers] | type[Vectorised] | None = None  # None: one by one
    notes: tuple[str, ...] = ()  # why faster ways were left
    row_floats: int = 0  # see UnitGradients


@dataclass
class Rows:
    """A few of a site's rows, as they are before `batch_transform`."""

    dataset: Dataset
    device: torch.device

    @property
    def places(self) -> list[int]:
        """From all over the data."""
        places: list[int] = np.linspace(0, len(self.dataset) - 1, PROBED).round().astype(int).tolist()
        return sorted(set(places))

    def batch(self, rows: Sequence[int]) -> Any:
        """Rows together."""
        return to_device(collate(self.dataset, rows), self.device)


def tried(task: Task, model: nn.Module, dataset: Dataset, device: torch.device) -> Way:
    """Refuses what mixes rows, and finds the fastest way that agrees with rows taken one by one.

    What it says depends on the rows: it is for the model that a run starts with, once. The model stays as it is, but is
    in training mode.

    Args:
        task: whose forward pass, transform and loss are tried.
        model: of the task.
        dataset: the site's training rows.
        device: where the model is.

    Raises:
        UserError: what is not taken, and what to take in its place.
    """
    model.train()
    trained, rows = moving(model, ("*",), ()), Rows(dataset, device)
    for name, p in trained.items():
        if p.dtype != torch.float32:
            raise UserError(f"[dp]: the model's {name} is {p.dtype}, and clips hold in float32; call model.float()")
    _check(task, model, rows)
    return _choose(model, trained, rows, RowLoss(task))


def _check(task: Task, model: nn.Module, rows: Rows) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            groups = math.gcd(8, layer.num_features)
            mend = f"use torch.nn.GroupNorm({groups}, {layer.num_features})"
            raise UserError(f"[dp]: the model has a {type(layer).__name__} ({name}), which mixes rows; {mend}")
    with _shaken(model), _evaluating(model), torch.no_grad(), _one_row():
        losses = {row: float(_mean(task, model, rows.batch([row]))) for row in rows.places}
    alone = {row: one for row, one in losses.items() if math.isfinite(one)}
    some = list(alone)
    others = [some[place - 1] if place % 2 else row for place, row in enumerate(some)]
    if len(some) > 1:
        _check_transform(task, rows, some, others)
        with _shaken(model):
            _check_outputs(task, model, rows.batch(some), rows.batch(others), len(some))
        with _shaken(model), _evaluating(model), torch.no_grad():
            _check_loss(float(_mean(task, model, rows.batch(some))), list(alone.values()))


def _mean(task: Task, model: nn.Module, batch: Any) -> Tensor:
    return mean_loss(task.loss(*output_of(task, model, batch)))


def _choose(model: nn.Module, trained: Moving, rows: Rows, loss: Loss) -> Way:
    left: list[str] = []
    with _shaken(model), _evaluating(model), torch.backends.cudnn.flags(allow_tf32=False):
        found = {row: _gradient(model, trained, loss, rows.batch([row])) for row in rows.places}
        single = {row: grads for row, grads in found.items() if all(g.isfinite().all() for g in grads)}
        if not single:
            return Way(None, ("no row that was tried has a gradient",))
        for kind in (Layers, Vectorised):
            try:
                with closing(kind(model, trained, loss)) as method:
                    if _agrees(method, rows.batch(list(single)), list(single.values())):
                        return Way(kind, tuple(left), method.row_floats)
                left.append(f"{kind.__name__}: not the gradients of single rows")
            except Exception as error:  # whatever a model does to a way that it was not written for
                left.append(f"{kind.__name__}: {str(error).partition(chr(10))[0] or type(error).__name__}")
    return Way(None, tuple(left))


def _check_transform(task: Task, data: Rows, rows: list[int], others: list[int]) -> None:
    if type(task).batch_transform is Task.batch_transform:
        return
    mend = "leave it out, or make it change each row by itself"
    pair = [data.batch(chosen) for chosen in (rows, others)]
    for seed in range(TRIES):
        found = []
        for batch in pair:
            with seeded(seed, "transform"):
                found.append(task.batch_transform(copy.deepcopy(batch)))
        for one, other in zip(*map(tree_leaves, found), strict=True):
            if isinstance(one, Tensor) and one.dim() and len(one) != len(rows):
                raise UserError(f"[dp]: batch_transform makes {len(one)} rows of {len(rows)}; {mend}")
            if isinstance(one, Tensor) and one.dim() and not torch.equal(one[::2], other[::2]):
                raise UserError(f"[dp]: batch_transform mixes rows (as mixup does); {mend}")


def _check_outputs(task: Task, model: nn.Module, batch: Any, other: Any, rows: int) -> None:
    """By one seed, so that dropout takes out the same."""
    found, moved = [], []
    for one in (batch, other):
        with seeded(0, "outputs"), torch.no_grad(), _unmoved(model):
            found.append([o for o in tree_leaves(output_of(task, model, one)[0]) if isinstance(o, Tensor) and o.dim()])
            moved.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    for name, buffer in moved[0].items():
        if not torch.equal(buffer, moved[1][name]):
            mend = "take a layer without, e.g. track_running_stats=False"
            raise UserError(f"[dp]: the model's buffer {name!r} keeps something of the rows that it sees; {mend}")
    for one, two in zip(*found, strict=True):
        if len(one) == len(two) == rows and not _near(one[::2], two[::2], 1e-2 * NEAR):
            mend = "take a layer that treats each row by itself, e.g. torch.nn.GroupNorm"
            raise UserError(f"[dp]: what the model says of a row depends on the other rows of its batch; {mend}")


@contextmanager
def _one_row() -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = f"the task cannot take a row by itself ({str(error).partition(chr(10))[0]})"
        raise UserError(f"[dp]: {said}; keep the dimension of rows, e.g. squeeze(1) in place of squeeze()") from error


def _check_loss(together: float, alone: Sequence[float]) -> None:
    """Rows get losses of their own in any case, but a task that means another should know."""
    mean = math.fsum(alone) / len(alone)
    if not math.isclose(together, mean, rel_tol=NEAR, abs_tol=NEAR * max(map(abs, alone))):
        said = f"the loss of {len(alone)} rows is {together:.6g}, and the mean of their losses {mean:.6g}"
        mend = (
            "return the mean over rows; a loss that compares rows (Cox) or weighs them by the batch cannot be clipped"
        )
        raise UserError(f"[dp]: {said}; {mend}")


def _gradient(model: nn.Module, moving: Moving, loss: Loss, batch: Any) -> list[Tensor]:
    with _one_row():
        value = loss(model, batch, 1)
        if not value.requires_grad:
            raise UserError("task: the loss has no gradient; compute it in torch from the model's output, undetached")
        grads = torch.autograd.grad(value, list(moving.values()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(moving.values(), grads, strict=True)]


def _agrees(method: UnitGradients, batch: Any, single: list[list[Tensor]]) -> bool:
    """Norms, and a sum in which each row has a weight of its own."""
    squares = method.squares(batch, [1] * len(single))
    norms = torch.stack([torch.stack([g.double().square().sum() for g in row]).sum() for row in single]).sqrt()
    scales = torch.linspace(1, 2, len(single), dtype=torch.float64, device=squares.device)
    sums = [torch.tensordot(scales, torch.stack(grads).double(), 1) for grads in zip(*single, strict=True)]
    grain = 1e-3 * NEAR * float(norms.max())  # where a gradient is zero but for rounding
    found = [squares.sqrt(), *method.weighted(scales)]
    return all(_near(one, other, NEAR, grain) for one, other in zip(found, [norms, *sums], strict=True))


def _near(one: Tensor, other: Tensor, relative: float, absolute: float = 0.0) -> bool:
    one, other = one.double(), other.double()
    return not one.numel() or bool((one - other).abs().max() <= relative * float(other.abs().max()) + absolute)


@contextmanager
def _shaken(model: nn.Module) -> Iterator[None]:
    """The parameters that are trained a little moved, and in place again afterwards."""
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]
    with seeded(0, "shaken"), torch.no_grad(), _unmoved(model):
        for p, was in kept:
            p.add_(torch.randn(p.shape).to(p) * (0.02 + 0.1 * was.float().square().mean().sqrt().to(p)))
        try:
            with torch.enable_grad():
                yield
        finally:
            for p, was in kept:
                p.copy_(was)


@contextmanager
def _unmoved(model: nn.Module) -> Iterator[None]:
    """Buffers as they were, afterwards."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, was in kept:
                buffer.copy_(was)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; each layer is in the mode that it was in afterwards."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training
