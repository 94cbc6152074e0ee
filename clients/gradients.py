"""Gradients of single units (rows, or groups of rows): their norms first, then their weighted sum.

B = rows, U = units, T = places at which a layer sees a row. The rows of a unit lie together; its gradient is that of
the mean loss over them. Nothing is clipped here, and no noise added: see `clients.dpsgd`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

STRETCH = 512  # floats
SURE = 1e-20  # of a squared norm: what vanishes below it is less than a millionth
TINY = 2.0**-126  # the least float32 that has all its digits
LARGE = 2.0**64
Loss = Callable[[nn.Module, Any, int], Tensor]  # the sum over so many rows of a batch
Moving = Mapping[str, nn.Parameter]  # what is trained, by name


class Unfit(Exception):
    """A model that a method cannot take."""


class UnitGradients(Protocol):
    """A way to the gradients of units."""

    row_floats: int  # that are kept for a row, beside what passes through the model; known after the first use

    def squares(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """Squared L2 norms of the units' gradients over all that is trained, [U] float64; kept for `weighted`."""
        ...

    def weighted(self, scales: Tensor) -> list[Tensor]:
        """The sum of scale times gradient, by parameter, for scales [U] float64; 0 leaves a unit out, NaN and all."""
        ...

    def close(self) -> None:
        """Leaves the model as it was."""
        ...


class Vectorised:
    """Row by row, as torch.func maps it: each is alone in the model, whatever that does."""

    def __init__(self, model: nn.Module, moving: Moving, loss: Loss) -> None:
        self.moving = {f"model.{name}": p for name, p in moving.items()}
        self.row_floats = sum(p.numel() for p in moving.values())
        self.whole = _Whole(model, loss)

    def squares(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """See UnitGradients."""
        leaves, spec = tree_flatten(batch)
        if not all(isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == sum(sizes) for leaf in leaves):
            raise Unfit("a batch of other things than tensors of rows")

        def loss(moving: dict[str, Tensor], row: list[Tensor]) -> Tensor:
            one = tree_unflatten([leaf.unsqueeze(0) for leaf in row], spec)
            return functional_call(self.whole, moving, (one,))  # type: ignore[no-any-return]

        moving = {name: p.detach() for name, p in self.moving.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # it goes on one by one: LSTM, attention
            found = vmap(grad(loss), (None, 0), randomness="different")(moving, leaves)
        self.made = [Made(added(shared(found[name], sizes), sizes)) for name in self.moving]
        return torch.stack([one.squares() for one in self.made]).sum(0)

    def weighted(self, scales: Tensor) -> list[Tensor]:
        """See UnitGradients."""
        return [one.weighted(scales) for one in self.made]

    def close(self) -> None:
        """See UnitGradients."""


class _Whole(nn.Module):
    """A model and its loss as one module, so that torch.func can put other parameters into both."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.model, batch, 1)


class Made:
    """Gradients of one parameter by one unit each, as they are.

    Args:
        units: [U, ...]
    """

    def __init__(self, units: Tensor) -> None:
        self.units = units

    def squares(self) -> Tensor:
        """[U] float64."""
        return squares(self.units.reshape(len(self.units), -1))

    def weighted(self, scales: Tensor) -> Tensor:
        """The sum over units."""
        kept, scales = left(scales, self.units)
        total: Tensor = torch.tensordot(scales.to(kept.dtype), kept, 1)
        return total


def squares(units: Tensor) -> Tensor:
    """Squared L2 norms of float32 vectors, [U, N] -> [U] float64, right to a millionth from the least to the largest.

    Float32 adds up a short stretch rightly, unless squares vanish in it (below 1e-19) or overflow: then float64 does.
    """
    stretches = units.shape[1] // STRETCH * STRETCH
    whole, rest = units[:, :stretches].view(len(units), stretches // STRETCH, STRETCH), units[:, stretches:]
    found: Tensor = torch.linalg.vector_norm(whole, dim=2).double().square().sum(1)
    found += torch.linalg.vector_norm(rest, dim=1).double().square()
    doubtful = ~((found > SURE) & found.isfinite())
    if doubtful.any():
        found[doubtful] = torch.cat([one.double().square().sum(1) for one in torch.split(units[doubtful], 1)])
    return found


def balanced(g: Tensor, a: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of g, [B, ...], times their scales, [B] float64, and of a, [B, ...], for products of the two.

    Where a is huge, g would leave float32's digits below, and the product be wrong by much: a gives a part to it.
    """
    given = torch.where(squares(a.flatten(1)) > LARGE**2, LARGE, 1.0).to(scales)
    if (given > 1).any():
        a = a / by_rows(given, a)
    return g * by_rows(scales * given, g), a


def by_rows(scales: Tensor, rows: Tensor) -> Tensor:
    """[B] as [B, 1, ...], to multiply rows by."""
    return scales.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


def left(scales: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """What has a scale that is not 0, and the scales: 0 times NaN would be NaN."""
    keep = scales != 0
    return (*(values if keep.all() else (one[keep] for one in values)), scales[keep])


def shared(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Gradients of rows' losses, each divided by the rows of its unit; a row may have several places."""
    if len(sizes) == (count := sum(sizes)):
        return rows
    counts = torch.tensor(sizes, device=rows.device)
    each = counts.repeat_interleave(counts * (len(rows) // count))
    return rows / each.view(-1, *[1] * (rows.dim() - 1))


def added(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Sums over the rows of each unit, [B, ...] -> [U, ...]."""
    if len(sizes) == len(rows):
        return rows
    return torch.stack([unit.sum(0) for unit in torch.split(rows, list(sizes))])
