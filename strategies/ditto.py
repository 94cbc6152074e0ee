"""A personal model for every site, kept near the shared one."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from hansa.records import LocalRun
from strategies.base import Local, Memory, Strategy


class Ditto(Strategy):
    """Ditto (Li et al., ICML 2021, algorithm 1): FedAvg, and a second pass at the site for its personal model v.

    The personal pass minimises F_k(v) + lam/2 * ||v - w_t||^2 over the same amount of local work.
    """

    lam: Annotated[float, Field(ge=0)] = 0.1

    def local_update(self, model: nn.Module, batches: Iterable[Any], ctx: Local) -> tuple[LocalRun, Memory]:
        """The shared pass as in FedAvg, then the personal pass from where v stood."""
        run = ctx.fit(model, batches)
        names = dict(model.named_parameters())
        ctx.load(ctx.anchor, model)
        anchors = {name: p.detach().clone() for name, p in names.items()}

        def loss(net: nn.Module, batch: Any) -> Tensor:
            near = sum((p - anchors[name]).square().sum() for name, p in names.items())
            return ctx.task.loss(*ctx.task.forward(net, batch)) + self.lam / 2 * near

        ctx.load(self.personal(ctx.anchor, ctx.memory), model)
        ctx.fit(model, batches, loss=loss, hooks=False)
        return run, {**ctx.memory, "personal": ctx.vector(model)}

    def personal(self, params: Tensor, memory: Memory) -> Tensor:
        """The site's v; the shared model until it has one."""
        return memory.get("personal", params)
