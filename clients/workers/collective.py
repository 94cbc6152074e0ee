"""What joins ranks: a store at which they meet, and a process group."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though not in its __all__

HOST = "127.0.0.1"
MEETING = timedelta(minutes=5)  # to be there at the start
COLLECTIVE = timedelta(hours=2)  # the supervisor sees a rank that dies or hangs long before


@contextmanager
def open_store() -> Iterator[int]:
    """A store for one generation, while it lasts; its port, which the system chooses: no other group can have it."""
    store = TCPStore(HOST, 0, None, is_master=True, timeout=MEETING, wait_for_workers=False)
    yield store.port
    del store


@contextmanager
def join(rank: int, world: int, port: int, backend: str) -> Iterator[None]:
    """Is in a process group with the others while it lasts.

    Args:
        rank: from 0.
        world: how many there are.
        port: of the store.
        backend: "gloo" or "nccl"; what is on the CPU goes by gloo in both.
    """
    store = TCPStore(HOST, port, None, is_master=False, timeout=MEETING)
    kinds = "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(kinds, store=store, rank=rank, world_size=world, timeout=COLLECTIVE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def least(number: int) -> int:
    """The least of the ranks' numbers, each of whom must ask; one that is alone has its own."""
    if not dist.is_initialized():
        return number
    found = torch.tensor(number)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)
