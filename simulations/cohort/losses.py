"""The losses of `Task.loss` on stacked outputs, with their gradients. C = outputs of a row."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Of outputs z [a, B, C], targets [a, B, ...] and each row's weight in the mean [a, B]: losses [a], gradients [a, B, C].
Loss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def loss_for(kind: str, outputs: int, target: Tensor) -> Loss | None:
    """Which of the losses `Task.loss` takes for stacked targets [S, K, B, ...]; None: one that is not here."""
    entries = target[0, 0, 0].numel() if target.numel() else 0
    if kind == "regression":
        return squared_error if entries == outputs else None
    if entries == outputs:
        return binary_cross_entropy
    classes = target.dim() == 3 and target.dtype is torch.int64
    # Other targets are probabilities, a class to be left out, or a mistake that the plain loop tells.
    return cross_entropy if classes and int(target.min()) >= 0 and int(target.max()) < outputs else None


def cross_entropy(z: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of classes: -log softmax(z)[y], whose gradient is softmax(z) - onehot(y)."""
    logs, at = z.log_softmax(2), target.unsqueeze(2)
    losses = logs.gather(2, at).squeeze(2).mul_(weight).sum(1).neg_()
    d = logs.exp_().scatter_add_(2, at, logs.new_full((), -1.0).expand_as(at))
    return losses, d.mul_(weight.unsqueeze(2))


def binary_cross_entropy(z: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits against labels of 0 and 1, whose gradient is sigmoid(z) - y; a mean over all entries."""
    wanted, each = target.reshape(z.shape).to(z.dtype), weight.unsqueeze(2) / z.shape[2]
    losses = F.binary_cross_entropy_with_logits(z, wanted, reduction="none").mul_(each).sum((1, 2))
    return losses, z.sigmoid().sub_(wanted).mul_(each)


def squared_error(z: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(z - y)^2, whose gradient is 2 (z - y); a mean over all entries."""
    each = weight.unsqueeze(2) / z.shape[2]
    error = z - target.reshape(z.shape).to(z.dtype)
    return (error.square() * each).sum((1, 2)), error.mul_(2 * each)
