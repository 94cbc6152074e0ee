"""Where a model is trained."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hansa.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device of a name: "auto" (CUDA, else MPS, else the CPU), "cpu", "cuda", "cuda:i" or "mps".

    Raises:
        UserError: this machine has no such device.
    """
    if name == "auto":
        found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(found)
    device = torch.device(name)
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= there[device.type]:
        raise UserError(f'device: there is no {name} on this machine; use "auto" or "cpu"')
    return device


def hardware(device: torch.device) -> str:
    """The class of hardware on which results repeat bit for bit, as it is recorded with a run."""
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)} torch {torch.__version__}"
    return f"{device.type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Sets torch's number of threads, on which the bits of a result depend, and puts it back."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
