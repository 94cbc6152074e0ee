"""Metrics that add up: each is a pair of sums, so that the federation's value needs no single site's.

A ratio is a numerator and a count, [2] float64. A ROC is two histograms of scores, of the negatives and of the
positives, [2, BINS] float64: AUC is a rank statistic, and ranks over the pooled patients follow from the sums.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from numbers import Number

import torch
from torch import Tensor

from hansa.errors import UserError

BINS = 1024
LOGIT_RANGE = 16.0  # scores beyond it share the outermost bins

Sums = dict[str, Tensor]  # by metric name: [2] or [2, BINS] float64
Metrics = Mapping[str, "Tensor | tuple[Tensor | float, Tensor | float]"]  # what Task.metrics returns


def ratio(numerator: Tensor | float, count: Tensor | float) -> Tensor:
    """A mean in two sums: `ratio(correct, n)`."""
    return torch.stack([torch.as_tensor(part).detach().double().cpu() for part in (numerator, count)])


def roc(logits: Tensor, labels: Tensor) -> Tensor:
    """Histograms of the scores, [2, BINS]: row 0 where the label is 0, row 1 where it is 1.

    Args:
        logits: [B] scores of the positive class before the sigmoid.
        labels: [B] of 0 and 1.
    """
    width = 2 * LOGIT_RANGE / BINS
    scores = logits.detach().double().cpu().reshape(-1)
    bins = ((scores + LOGIT_RANGE) / width).floor().nan_to_num(0.0).clamp(0, BINS - 1).long()
    rows = labels.detach().cpu().reshape(-1).long()
    if (strange := labels.reshape(-1)[(rows != 0) & (rows != 1)]).numel():
        mend = "give the model an output a class, or list the labels in [data] classes"
        raise UserError(f"task: one output is for labels 0 and 1, and there is {float(strange[0]):g}; {mend}")
    return torch.bincount(rows * BINS + bins, minlength=2 * BINS).view(2, BINS).double()


def value(sums: Tensor) -> float | None:
    """The metric's value; None where it is undefined (nothing counted, or an AUC of one class only)."""
    if sums.dim() == 1:
        return float(sums[0] / sums[1]) if sums[1] else None
    negatives, positives = sums
    below = negatives.cumsum(0) - negatives
    pairs = negatives.sum() * positives.sum()
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else None


def values(sums: Mapping[str, Tensor]) -> dict[str, float | None]:
    """The value of each metric."""
    return {name: value(one) for name, one in sums.items()}


def as_sums(metrics: Metrics) -> Sums:
    """What a task's `metrics` returned, as tensors of sums.

    Raises:
        UserError: something else than pairs of numbers and ROCs by name.
    """
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise UserError(f"task: metrics gave {_what(metrics)}; return a dict of sums by name")
    return {name: _sums(name, one) for name, one in metrics.items()}


def mean_loss(loss: object) -> Tensor:
    """A batch's loss.

    Raises:
        UserError: it is not one number in a tensor.
    """
    if not isinstance(loss, Tensor) or loss.dim():
        raise UserError(f"task: the loss must be one number, the batch's mean, as a tensor; it is {_what(loss)}")
    return loss


def is_sums(shape: Sequence[int]) -> bool:
    """Whether sums of this shape are a metric's."""
    return tuple(shape) in ((2,), (2, BINS))


def _sums(name: str, one: object) -> Tensor:
    if isinstance(one, Tensor) and is_sums(one.shape):
        return one
    pair = list(one) if isinstance(one, tuple | list) else []
    if len(pair) == 2 and all(isinstance(part, Number) or getattr(part, "ndim", None) == 0 for part in pair):
        return ratio(*pair)
    mend = "return (numerator, count), two numbers, or hansa.metrics.roc(...)"
    raise UserError(f"task: metric {name!r} is {_what(one)}; {mend}")


def _what(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"{type(value).__name__} of length {len(value)}" if isinstance(value, Sized) else type(value).__name__


def total(many: Iterable[Mapping[str, Tensor]]) -> Sums:
    """The sums of several batches or sites."""
    result: Sums = {}
    for sums in many:
        for name, one in sums.items():
            if name in result and result[name].shape != one.shape:
                raise UserError(f"task: metric {name!r} is once a ratio and once a ROC; return one of them always")
            result[name] = result[name] + one if name in result else one
    return result
