"""How a model is spread over W processes: as site.toml says, or as memory allows."""

import torch
from torch import nn

from clients.parallel.config import Degrees

COPIES = 4  # of what is trained: itself, its gradient, and Adam's two moments
SHARE = 0.6  # of a device's memory that these may take: the rest is for what passes through the model
GIB = 2**30


def needed(model: nn.Module) -> int:
    """Bytes for parameters, gradients and moments of a model, whole."""
    return sum(p.nbytes * (COPIES if p.requires_grad else 1) for p in model.parameters())


def room(device: torch.device, procs: int) -> int:
    """Bytes of memory that one of the machine's processes may count on."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    with open("/proc/meminfo") as lines:
        found = dict(line.split(":", 1) for line in lines)
    return int(found["MemAvailable"].split()[0]) * 1024 // procs


def chosen(need: int, room: int, procs: int) -> tuple[Degrees, str]:
    """Data parallel where the model fits, else sharded; and a line that says so."""
    fits = need <= SHARE * room
    split = Degrees(dp=procs) if fits else Degrees(shard=procs)
    how = "each process holds the whole model (DDP)" if fits else "the model is sharded (FSDP2)"
    sizes = f"with gradients and moments it takes {need / GIB:.3g} GiB, of {room / GIB:.3g} GiB of memory a process"
    return split, f"parallel: {how}; {sizes}"
