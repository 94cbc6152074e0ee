"""What the server lets into a sum: checked before anything is added, each refusal with its reason."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hansa.layout import Layout
from hansa.records import Part, Reply


def refusal(reply: Reply, parts: Mapping[str, Part], layout: Layout) -> str | None:
    """Why an update may not be added, or None.

    Args:
        reply: of one site to a train plan.
        parts: the vectors that the strategy declares.
        layout: of the shared model; names the element at fault.
    """
    if type(reply.examples) is not int or reply.examples < 0:
        return f"a weight of {reply.examples!r}: it must be a number of rows, 0 or more"
    if set(reply.upload) != set(parts):
        return f"parts {sorted(reply.upload)} where the strategy has {sorted(parts)}"
    for name, part in parts.items():
        if problem := _problem(name, reply.upload[name], part, layout):
            return problem
    counters = reply.counters
    if counters is None or counters.dtype != torch.int64 or counters.shape != (layout.n_counters,):
        return f"counters are not {layout.n_counters} integers of 64 bits"
    return None


def finite(vector: Tensor) -> bool:
    """Whether a vector holds neither NaN nor infinity."""
    return not len(vector) or bool(torch.stack(torch.aminmax(vector)).isfinite().all())  # a NaN is both ends


def _problem(name: str, vector: Tensor, part: Part, layout: Layout) -> str | None:
    if vector.dtype != torch.float32 or vector.shape != (part.size,):
        return f"part {name!r} is {tuple(vector.shape)} {vector.dtype} where ({part.size},) torch.float32 is declared"
    if finite(vector):
        return None
    index = int((~torch.isfinite(vector)).nonzero()[0])
    return f"part {name!r} has {float(vector[index])} at {layout.locate(index)}"
