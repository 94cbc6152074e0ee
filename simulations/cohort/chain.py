"""Chains of linear layers and activations, lowered to batched products of matrices with a backward pass by hand.

A step of a small model costs the interpreter and torch's bookkeeping more than its arithmetic; here the layers of all
sites are one call each. I, O = a layer's inputs and outputs; C = outputs of the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hansa.task import Task
from simulations.cohort.gradients import Tensors
from simulations.cohort.losses import Loss, loss_for
from simulations.cohort.stack import Stack

aten = torch.ops.aten
Forward = Callable[[Tensor], Tensor]
Backward = Callable[[Tensor, Tensor, Tensor], Tensor]  # of the gradient, what came in, what went out
ACTIVATIONS: dict[type[nn.Module], tuple[Forward, Backward]] = {
    nn.ReLU: (torch.relu, lambda d, x, y: aten.threshold_backward(d, y, 0)),
    nn.Tanh: (torch.tanh, lambda d, x, y: aten.tanh_backward(d, y)),
    nn.Sigmoid: (torch.sigmoid, lambda d, x, y: aten.sigmoid_backward(d, y)),
    nn.GELU: (F.gelu, lambda d, x, y: aten.gelu_backward(d, x)),
    nn.SiLU: (F.silu, lambda d, x, y: aten.silu_backward(d, x)),
}


@dataclass(frozen=True)
class Linear:
    """A layer by the names of its tensors."""

    weight: str  # [O, I]
    bias: str | None  # [O]


Layer = Linear | type[nn.Module]  # or an activation
Update = Callable[[Linear, Tensor, Tensor], None]  # with the gradient of a layer's output and its input, [a, B, ...]


class Chain:
    """A model that is such a chain, under the task's default forward pass and loss.

    The last batch of an epoch is padded: each row has its weight in the mean, and padding has none.
    """

    def __init__(self, kind: str, layers: Sequence[Layer], flat: bool, outputs: int) -> None:
        self.kind, self.layers, self.flat, self.outputs = kind, tuple(layers), flat, outputs

    @classmethod
    def of(cls, task: Task, model: nn.Module) -> "Chain | None":
        """The chain that a task's model is, if it is one."""
        as_is = type(task).forward is Task.forward and type(task).loss is Task.loss
        modules = list(_flattened(model, ""))
        trained = all(p.requires_grad for p in model.parameters())
        distinct = len({id(module) for _, module in modules}) == len(modules)
        if not (as_is and trained and distinct) or list(model.buffers()) or any(map(_hooked, model.modules())):
            return None
        layers: list[Layer] = []
        flat = False
        for name, module in modules:
            if type(module) is nn.Linear:
                layers.append(Linear(f"{name}weight", None if module.bias is None else f"{name}bias"))
                outputs = module.out_features
            elif type(module) in ACTIVATIONS and getattr(module, "approximate", "none") == "none":
                layers.append(type(module))
            elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
                flat = flat or not any(isinstance(layer, Linear) for layer in layers)
            elif type(module) is not nn.Identity:
                return None
        if not layers or not isinstance(layers[-1], Linear):
            return None
        tied = len({id(p) for p in model.parameters()}) != sum(
            1 + (layer.bias is not None) for layer in layers if isinstance(layer, Linear)
        )
        return None if tied else cls(task.kind, layers, flat, outputs)

    def loss(self, stack: Stack) -> Loss | None:
        """The loss on these batches; None where they are not for a chain."""
        if len(stack.leaves) != 2 or stack.batch([0, 1]) not in ([0, 1], (0, 1)):  # type: ignore[list-item]
            return None
        inputs, target = stack.leaves
        if inputs.dtype is not torch.float32 or (inputs.dim() != 4 and not self.flat):
            return None
        return loss_for(self.kind, self.outputs, target)

    def step(
        self, params: Tensors, x: Tensor, loss: Callable[[Tensor], tuple[Tensor, Tensor]], update: Update
    ) -> Tensor:
        """Losses [a] of inputs [a, B, ...]; each layer's update is told its gradient once nothing needs the old one."""
        seen = [x.flatten(2)]
        for layer in self.layers:
            seen.append(_forward(layer, params, seen[-1]))
        losses, d = loss(seen[-1])
        first = next(i for i, layer in enumerate(self.layers) if isinstance(layer, Linear))
        for i in range(len(self.layers) - 1, first - 1, -1):
            layer, came = self.layers[i], seen[i]
            if not isinstance(layer, Linear):
                d = ACTIVATIONS[layer][1](d, came, seen[i + 1])
                continue
            back = torch.bmm(d, params[layer.weight]) if i > first else d
            update(layer, d, came)
            d = back
        return losses


def sgd(params: Tensors, lr: float) -> Update:
    """A step of plain SGD within the product that gives the gradient."""

    def update(layer: Linear, d: Tensor, x: Tensor) -> None:
        params[layer.weight].baddbmm_(d.transpose(1, 2), x, alpha=-lr)
        if layer.bias is not None:
            params[layer.bias].sub_(d.sum(1), alpha=lr)

    return update


def kept(grads: Tensors) -> Update:
    """Puts the gradients down by name."""

    def update(layer: Linear, d: Tensor, x: Tensor) -> None:
        grads[layer.weight] = torch.bmm(d.transpose(1, 2), x)
        if layer.bias is not None:
            grads[layer.bias] = d.sum(1)

    return update


def _forward(layer: Layer, params: Tensors, x: Tensor) -> Tensor:
    if not isinstance(layer, Linear):
        return ACTIVATIONS[layer][0](x)
    weight = params[layer.weight].transpose(1, 2)
    return torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(params[layer.bias].unsqueeze(1), x, weight)


def _flattened(module: nn.Module, prefix: str) -> Any:
    if type(module) is nn.Sequential:
        for name, child in module._modules.items():  # one that stands there twice is there twice
            yield from _flattened(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
