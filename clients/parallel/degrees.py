"""How a model is spread over W processes: as site.toml says, or as memory allows."""

import torch
from torch import nn

from clients.parallel.config import Degrees, ParallelKeys
from hansa.errors import UserError

COPIES = 4  # of the parameters: themselves, their gradients, and Adam's two moments
SHARE = 0.6  # of a device's memory that these may take: the rest is for what passes through the model
GIB = 2**30


def given(keys: ParallelKeys, procs: int) -> Degrees | None:
    """The degrees that site.toml names; None: "auto".

    Raises:
        UserError: they are for another number of processes.
    """
    split = keys.parallel
    if split == "auto":
        return None
    if split.procs != procs:
        said = " x ".join(f"{name} {degree}" for name, degree in split.model_dump().items() if degree > 1) or "1"
        mend = f'set procs = {split.procs}, or parallel = "auto"'
        raise UserError(
            f"site.toml [training] parallel: {said} is for {split.procs} processes, and procs is {procs}; {mend}"
        )
    return split


def check_devices(procs: int, device: torch.device, there: int) -> None:
    """Refuses more processes than the machine has GPUs, where GPUs are used.

    Raises:
        UserError: there are too few, or they are of a kind that cannot talk to each other.
    """
    if device.type == "cuda" and procs > there:
        raise UserError(
            f"site.toml [training] procs: {procs} processes, and there are {there} GPUs; set procs = {there}"
        )
    if device.type == "mps" and procs > 1:
        raise UserError('site.toml [training] procs: MPS is one device; set procs = 1, or device = "cpu"')


def needed(model: nn.Module) -> int:
    """Bytes for parameters, gradients and moments of a model, whole."""
    return COPIES * sum(p.numel() * p.element_size() for p in model.parameters())


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
