"""Gradients of single units through a model of known layers: one forward and one backward pass over all rows.

What each layer got, and the gradient at what it gave, are all that is needed. A dense layer's gradient for a row is the
outer product of the two: the norm is the product of theirs, and a weighted sum over rows is one matrix product, so
that nothing of the size [B, parameters] is made (Goodfellow 2015; Bu et al. 2022). Where a layer sees a row at many
places, or a unit has many rows, gradients are made: norms by Gram matrices lose their digits when places cancel, and
what has a norm that comes out too small is not clipped.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn.grad import conv2d_weight

from clients.gradients import Loss, Made, Moving, Unfit, added, balanced, by_rows, left, shared


class Part(Protocol):
    """What one use of a layer adds to one parameter's gradient."""

    def squares(self) -> Tensor:
        """[U] float64."""
        ...

    def weighted(self, scales: Tensor) -> Tensor:
        """The sum over units, for scales [U] float64."""
        ...

    @property
    def units(self) -> Tensor:
        """[U, ...]."""
        ...


@dataclass
class Use:
    """A layer at work on a batch.

    Args:
        layer: which.
        a: [B, ...], what it got.
        version: of `a`, which must not be changed in place until the gradient is known.
        edge: where the gradient at what it gave passes by, also if that is changed in place.
        g: [B, ...], that gradient, each row's over the rows of its unit.
        sizes: [U], rows of the units.
    """

    layer: Any
    a: Tensor
    version: int
    edge: GradientEdge
    g: Tensor = field(default_factory=lambda: torch.empty(0))
    sizes: Sequence[int] = ()

    @property
    def rows(self) -> int:
        """B."""
        return sum(self.sizes)


class Layers:
    """All rows at once.

    Raises:
        Unfit: a trained parameter is in none of the layers that are known.
    """

    def __init__(self, model: nn.Module, moving: Moving, loss: Loss) -> None:
        self.model, self.loss, self.moving, self.row_floats = model, loss, moving, 0
        self.places = {id(p): number for number, p in enumerate(moving.values())}
        layers = [m for m in model.modules() if any(id(p) in self.places for p in m.parameters(recurse=False))]
        for layer in layers:
            names = {name for name, p in layer.named_parameters(recurse=False) if id(p) in self.places}
            if type(layer) not in RULES or not names <= {"weight", "bias"}:
                raise Unfit(f"a {type(layer).__name__} with parameters of its own")
        self.uses: list[Use] = []
        self.watching = False
        self.hooks = [layer.register_forward_hook(self._use) for layer in layers]

    def squares(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """See UnitGradients."""
        self._pass(batch, sizes)
        parts: dict[int, list[Part]] = {number: [] for number in self.places.values()}
        for use in self.uses:
            for name, part in RULES[type(use.layer)](use):
                number = self.places.get(id(getattr(use.layer, name)))
                if number is not None:
                    parts[number].append(part())
        self.parts = [_together(found) for found in parts.values()]
        made = sum(part.units.numel() for part in self.parts if isinstance(part, Made))
        self.row_floats = (made + sum(use.a.numel() + use.g.numel() for use in self.uses)) // sum(sizes)
        self.uses = []
        found = [part.squares() for part in self.parts if part is not None]
        return torch.stack(found).sum(0)

    def weighted(self, scales: Tensor) -> list[Tensor]:
        """See UnitGradients."""
        both = zip(self.parts, self.moving.values(), strict=True)
        return [torch.zeros_like(p) if part is None else part.weighted(scales) for part, p in both]

    def close(self) -> None:
        """See UnitGradients."""
        for hook in self.hooks:
            hook.remove()

    def _pass(self, batch: Any, sizes: Sequence[int]) -> None:
        """Forward and backward; leaves the uses with their gradients."""
        self.uses, rows, self.watching = [], sum(sizes), True
        try:
            loss = self.loss(self.model, batch, rows)
        finally:
            self.watching = False
        if not self.uses:
            raise Unfit("a model whose layers are not called")
        grads = torch.autograd.grad(loss, [use.edge for use in self.uses], allow_unused=True)
        reached = [(use, g) for use, g in zip(self.uses, grads, strict=True) if g is not None]
        for use, g in reached:
            if use.a._version != use.version or len(use.a) % rows or len(g) % rows:
                raise Unfit(
                    f"a {type(use.layer).__name__} whose input has no dimension of rows, or is changed in place"
                )
            if g.dtype != torch.float32:
                raise Unfit(f"a {type(use.layer).__name__} that works in {g.dtype}")
            use.g, use.sizes = shared(g, sizes), sizes
        self.uses = [use for use, _ in reached]

    def _use(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (self.watching and torch.is_grad_enabled()):
            return
        if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            raise Unfit(f"a {type(layer).__name__} that is called with other things than one tensor")
        self.uses.append(Use(layer, args[0].detach(), args[0]._version, get_gradient_edge(output)))


@dataclass
class Outer:
    """A dense layer's weights, where each unit is one row that is seen once.

    Args:
        g: [B, O]
        a: [B, I]
    """

    g: Tensor
    a: Tensor

    def squares(self) -> Tensor:
        """The norm of an outer product is the product of the norms."""
        return Made(self.g).squares() * Made(self.a).squares()

    def weighted(self, scales: Tensor) -> Tensor:
        """[O, I], one product."""
        g, a, scales = left(scales, self.g, self.a)
        g, a = balanced(g, a, scales)
        return g.T @ a

    @property
    def units(self) -> Tensor:
        """[B, O, I]."""
        return self.g.unsqueeze(2) * self.a.unsqueeze(1)


@dataclass
class Fleeting:
    """Weights of a layer that sees each row at few places: gradients are made for their norms, some rows at a time.

    The sum over rows is then a product of its own, which costs less than to keep them.

    Args:
        g: [B, ...]
        a: [B, ...]
        make: gradients of rows, [B, ...], from g and a
        add: their sum, from g and a
        floats: of a row's
    """

    g: Tensor
    a: Tensor
    make: Callable[[Tensor, Tensor], Tensor]
    add: Callable[[Tensor, Tensor], Tensor]
    floats: int

    def squares(self) -> Tensor:
        """[B] float64; not below what the sum may be wrong by where places cancel."""
        some = max(1, CACHED // self.floats)
        both = zip(torch.split(self.g, some), torch.split(self.a, some), strict=True)
        found = torch.cat([Made(self.make(g, a)).squares() for g, a in both])
        return torch.maximum(found, CANCELLED * Made(self.g).squares() * Made(self.a).squares())

    def weighted(self, scales: Tensor) -> Tensor:
        """The sum over rows."""
        g, a, scales = left(scales, self.g, self.a)
        return self.add(*balanced(g, a, scales))

    @property
    def units(self) -> Tensor:
        """[B, ...]."""
        return self.make(self.g, self.a)


@dataclass
class Lookup:
    """An embedding's rows, of which a unit sees few.

    Args:
        g: [B, T, D]
        tokens: [B, T]
        unit: [B], whose each row is
        count: U
        shape: of the weights, V and D
    """

    g: Tensor
    tokens: Tensor
    unit: Tensor
    count: int
    shape: torch.Size

    def squares(self) -> Tensor:
        """Gradients of a unit at one token add up before they are squared."""
        seen, place = torch.unique(self._keys, return_inverse=True)
        sums = self.g.new_zeros((len(seen), self.shape[1])).index_add_(0, place.flatten(), self.g.flatten(0, 1))
        squares, places = self.g.new_zeros((2, self.count), dtype=torch.float64)
        squares.index_add_(0, seen // self.shape[0], Made(sums).squares())
        places.index_add_(0, self.unit, Made(self.g).squares())  # what the sum may be wrong by where places cancel
        return torch.maximum(squares, CANCELLED * places)

    def weighted(self, scales: Tensor) -> Tensor:
        """[V, D]."""
        g, tokens, scales = left(scales[self.unit], self.g, self.tokens)
        return g.new_zeros(self.shape).index_add_(0, tokens.flatten(), (g * by_rows(scales, g)).flatten(0, 1))

    @property
    def units(self) -> Tensor:
        """[U, V, D]."""
        dense = self.g.new_zeros((self.count * self.shape[0], self.shape[1]))
        return dense.index_add_(0, self._keys.flatten(), self.g.flatten(0, 1)).view(self.count, *self.shape)

    @property
    def _keys(self) -> Tensor:
        return self.unit.unsqueeze(1) * self.shape[0] + self.tokens


CACHED = 1 << 22  # floats that are made at a time where they are soon done with
FEW = 64  # places
CANCELLED = 2.0**-24  # of places' squared norms: sums in another order differ by less
Found = Iterator[tuple[str, Callable[[], Part]]]  # by the parameter's name


def linear(use: Use) -> Found:
    """torch.nn.Linear; rows may lie in the first dimension together with places, one row's places together."""
    a, g = (one.reshape(use.rows, -1, one.shape[-1]) for one in (use.a, use.g))
    if a.shape[1] == 1 and len(use.sizes) == use.rows:
        yield "weight", lambda: Outer(g[:, 0], a[:, 0])
    elif a.shape[1] <= FEW and len(use.sizes) == use.rows:
        yield "weight", lambda: Fleeting(g, a, _outer, _outer_sum, g.shape[2] * a.shape[2])
    else:
        yield "weight", lambda: Made(_products(g, a, use.sizes))
    yield "bias", partial(_made, g.sum(1), use.sizes)


def convolution(use: Use) -> Found:
    """torch.nn.Conv2d: each output place sees a patch of the input, as a dense layer would."""
    layer = use.layer
    if layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str) or len(use.a) != use.rows:
        yield from anything(use)
        return
    make = partial(_filters, layer)
    if use.g.shape[2:].numel() <= FEW and len(use.sizes) == use.rows:

        def add(g: Tensor, a: Tensor) -> Tensor:
            shape, places = layer.weight.shape, (layer.stride, layer.padding, layer.dilation)
            total: Tensor = conv2d_weight(a, shape, g, *places)  # type: ignore[no-untyped-call]
            return total

        yield "weight", lambda: Fleeting(use.g, use.a, make, add, layer.weight.numel())
    else:
        yield "weight", lambda: _made(make(use.g, use.a), use.sizes)
    yield "bias", lambda: _made(use.g.sum((2, 3)), use.sizes)


def _filters(layer: Any, g: Tensor, a: Tensor) -> Tensor:
    """[B, O, I], I = channels and offsets of a patch; some rows at a time, so that patches stay in the cache."""
    (top, left), (down, right), (over, across) = layer.padding, layer.stride, layer.dilation
    a = F.pad(a, (left, left, top, top)).contiguous()
    row, channel, line, _ = a.stride()
    size = (a.shape[1], *layer.kernel_size, *g.shape[2:])
    stride = (row, channel, line * over, across, line * down, right)
    patch, places = math.prod(size[:3]), math.prod(size[3:])
    found = g.new_empty((len(g), layer.out_channels, patch))
    some = max(1, CACHED // (patch * places))
    for start in range(0, len(g), some):
        part = a[start : start + some]
        seen = part.as_strided((len(part), *size), stride, part.storage_offset()).reshape(len(part), patch, places)
        torch.bmm(g[start : start + some].flatten(2), seen.mT, out=found[start : start + some])
    return found.view(len(g), *layer.weight.shape)


def embedding(use: Use) -> Found:
    """torch.nn.Embedding."""
    layer = use.layer
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        raise Unfit("an Embedding with max_norm or scale_grad_by_freq")
    tokens, g = use.a.reshape(use.rows, -1), use.g.reshape(use.rows, -1, use.g.shape[-1])
    if layer.padding_idx is not None:
        g = g.masked_fill((tokens == layer.padding_idx).unsqueeze(2), 0.0)
    yield "weight", lambda: Lookup(g, tokens, _units(use), len(use.sizes), layer.weight.shape)


def normalisation(use: Use) -> Found:
    """torch.nn.GroupNorm and LayerNorm: the weight multiplies what is normalised within each row."""
    layer = use.layer
    if len(use.a) != use.rows:
        raise Unfit(f"a {type(layer).__name__} whose input has other rows")
    if isinstance(layer, nn.LayerNorm):
        normal, shape = F.layer_norm(use.a, layer.normalized_shape, eps=layer.eps), (-1, *layer.normalized_shape)
        over = 1
    else:
        normal, shape = F.group_norm(use.a, layer.num_groups, eps=layer.eps), (layer.num_channels, -1)
        over = 2
    for name, rows in (("weight", normal * use.g), ("bias", use.g)):
        yield name, partial(_made, rows.reshape(use.rows, *shape).sum(over), use.sizes)


def anything(use: Use) -> Found:
    """A layer of torch's own that treats rows apart and draws nothing: it works again, row by row."""
    layer = use.layer
    if len(use.a) != use.rows:
        raise Unfit(f"a {type(layer).__name__} whose input has other rows")

    def along(parameters: dict[str, Tensor], a: Tensor, g: Tensor) -> Tensor:
        return (functional_call(layer, parameters, (a.unsqueeze(0),)) * g.unsqueeze(0)).sum()  # type: ignore[no-any-return]

    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    for name, rows in vmap(grad(along), (None, 0, 0))(parameters, use.a, use.g).items():
        yield name, partial(_made, rows, use.sizes)


RULES: dict[type[nn.Module], Callable[[Use], Found]] = {
    nn.Linear: linear,
    nn.Conv2d: convolution,
    nn.Embedding: embedding,
    nn.GroupNorm: normalisation,
    nn.LayerNorm: normalisation,
    **dict.fromkeys((nn.Conv1d, nn.Conv3d, nn.PReLU, nn.RMSNorm), anything),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), anything),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), anything),
}


def _together(parts: list[Part]) -> Part | None:
    """One parameter's, which may be used more than once: then it is made, for norms do not add up."""
    if len(parts) > 1:
        total = parts[0].units.clone()
        for part in parts[1:]:
            total += part.units.view_as(total)
        return Made(total)
    return parts[0] if parts else None


def _units(use: Use) -> Tensor:
    counts = torch.tensor(use.sizes, device=use.a.device)
    return torch.arange(len(counts), device=use.a.device).repeat_interleave(counts)


def _made(rows: Tensor, sizes: Sequence[int]) -> Made:
    return Made(added(rows, sizes))


def _outer(g: Tensor, a: Tensor) -> Tensor:
    return g.mT @ a


def _outer_sum(g: Tensor, a: Tensor) -> Tensor:
    return g.flatten(0, 1).T @ a.flatten(0, 1)


def _products(g: Tensor, a: Tensor, sizes: Sequence[int]) -> Tensor:
    """Outer products added up over rows and places of each unit, [B, T, O] and [B, T, I] -> [U, O, I]."""
    if len(set(sizes)) == 1:
        g, a = (one.reshape(len(sizes), -1, one.shape[-1]) for one in (g, a))
        return _outer(g, a)
    both = zip(torch.split(g, list(sizes)), torch.split(a, list(sizes)), strict=True)
    return torch.stack([_outer_sum(*one) for one in both])
