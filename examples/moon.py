"""MOON: a strategy with a loss of its own, which looks at three models at once.

In a config:  [strategy]
              name = "moon.py:Moon"
              features = "projection"
"""

import copy
from collections.abc import Iterable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hansa import Strategy, Task, UserError
from hansa.records import LocalRun
from strategies.base import Local, Memory


class Moon(Strategy):
    """MOON (Li, He, Song, CVPR 2021, algorithm 1): the task's loss + mu * the model-contrastive loss (eq. 3)."""

    features: str  # name of the module whose output is the representation z: the model's projection head
    mu: Annotated[float, Field(ge=0)] = 1.0
    tau: Annotated[float, Field(gt=0)] = 0.5  # temperature

    def local_update(self, model: nn.Module, batches: Iterable[Any], ctx: Local) -> tuple[LocalRun, Memory]:
        """A pass that keeps z near the global model's and away from that of the site's last local model.

        In a site's first round the global model stands in for the last one: then eq. 3 is log 2, its gradient zero.
        """
        frozen = [copy.deepcopy(model).eval() for _ in range(2)]
        for twin, vector in zip(frozen, (ctx.anchor, ctx.memory.get("previous", ctx.anchor)), strict=True):
            ctx.load(vector, twin)

        def loss(net: nn.Module, batch: Any) -> Tensor:
            output, target, z = self.represent(ctx.task, net, batch)
            with torch.no_grad():
                z_global, z_previous = (self.represent(ctx.task, twin, batch)[2] for twin in frozen)
            return ctx.task.loss(output, target) + self.mu * contrast(z, z_global, z_previous, self.tau)

        return ctx.fit(model, batches, loss=loss), {**ctx.memory, "previous": ctx.vector(model)}

    def represent(self, task: Task, model: nn.Module, batch: Any) -> tuple[Any, Any, Tensor]:
        """Output, target and z [B, d] of a batch."""
        modules, kept = dict(model.named_modules()), list[Tensor]()
        if self.features not in modules:
            own = ", ".join(name for name, _ in model.named_children())
            raise UserError(f"[strategy] features: the model has no module {self.features!r}; it has {own}, and theirs")
        handle = modules[self.features].register_forward_hook(lambda module, inputs, z: kept.append(z))
        try:
            output, target = task.forward(model, batch)
        finally:
            handle.remove()
        return output, target, kept[-1].flatten(1)


def contrast(z_Bd: Tensor, z_global_Bd: Tensor, z_previous_Bd: Tensor, tau: float) -> Tensor:
    """Eq. 3, a batch's mean of -log(e^near / (e^near + e^far)), the cosine similarities over tau."""
    near, far = (F.cosine_similarity(z_Bd, other, dim=1) / tau for other in (z_global_Bd, z_previous_Bd))
    return F.softplus(far - near).mean()  # the same, without exponentials of large numbers
