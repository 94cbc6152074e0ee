"""A personal model for every site: the shared one, trained on at home."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from hansa.records import LocalRun
from strategies.base import Local, Memory, Strategy


class FineTune(Strategy):
    """FedAvg, and local fine-tuning (Yu, Bagdasaryan, Shmatikov, 2020, section 3.1).

    The personal model is the round's shared model after `passes` times [training]'s local work at the site; the first
    of these passes is FedAvg's own and costs nothing more. What is scored last started from the last round's model.
    """

    passes: Annotated[int, Field(ge=1)] = 1

    def local_update(self, model: nn.Module, batches: Iterable[Any], ctx: Local) -> tuple[LocalRun, Memory]:
        """The shared pass as in FedAvg, and the others from where it ended."""
        run = ctx.fit(model, batches)
        for _ in range(1, self.passes):
            ctx.fit(model, batches)
        return run, {**ctx.memory, "personal": ctx.vector(model)}

    def personal(self, params: Tensor, memory: Memory) -> Tensor:
        """The site's own; the shared model until it has one."""
        return memory.get("personal", params)
