"""The ranks of a site's training: W processes that meet at a store, and then talk by collectives."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own pages name it so

from clients.parallel.config import LOOPBACK

TIMEOUT = 600.0  # seconds that a rank waits for the others in a collective


@dataclass(frozen=True)
class Ranks:
    """This process among those of its site.

    Args:
        rank: from 0; rank 0 leads: only what it answers counts.
        world: W, how many there are.
        patience: seconds that one waits for the others in a collective.
    """

    rank: int
    world: int
    patience: float = TIMEOUT

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def from_lead(self, values: Tensor) -> Tensor:
        """Rank 0's values, in place."""
        dist.broadcast(values, 0)
        return values

    def bytes_from_lead(self, values: bytes, device: torch.device) -> bytes:
        """Rank 0's bytes, as many as each rank has."""
        sent = torch.frombuffer(bytearray(values), dtype=torch.uint8).to(device)
        return bytes(self.from_lead(sent).cpu().tolist())

    def wait(self) -> None:
        """Returns when all ranks have come here."""
        dist.all_reduce(torch.zeros(1))

    def alike(self, mine: bytes) -> bool:
        """Whether all ranks have the same bytes, as many of them; all of them ask."""
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        found = torch.tensor(int(torch.equal(self.from_lead(sent.clone()), sent)))
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return bool(found)

    def leave(self) -> None:
        """Ends the talk, in good order: all ranks call it."""
        dist.destroy_process_group()


def open_store(world: int, timeout: float = TIMEOUT, host: str = LOOPBACK) -> TCPStore:
    """The store of one generation of ranks, at rank 0, on a port that the system chose (`store.port`).

    It asks nobody who they are. So it listens at this address only: left to itself, it would at all of the machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=max(128, world)) as end:
        port, within = end.getsockname()[1], timedelta(seconds=timeout)
        return TCPStore(
            host,
            port,
            world,
            is_master=True,
            timeout=within,
            wait_for_workers=False,
            master_listen_fd=os.dup(end.fileno()),
        )


def join(
    rank: int,
    world: int,
    port: int,
    backend: str = "gloo",
    *,
    host: str = LOOPBACK,
    timeout: float = TIMEOUT,
    store: TCPStore | None = None,
) -> Ranks:
    """Joins the ranks of a site, and returns when all have come.

    Args:
        rank: of this process.
        world: W.
        port: of the store.
        backend: gloo, or nccl where each rank has a GPU of its own.
        host: of the store.
        timeout: seconds that a collective may wait.
        store: rank 0's own, from `open_store`.
    """
    within = timedelta(seconds=timeout)
    if store is None:
        store = TCPStore(host, port, world, is_master=False, timeout=within)
    kinds = "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"  # vectors come and go on the CPU
    dist.init_process_group(kinds, store=store, rank=rank, world_size=world, timeout=within)
    return Ranks(rank, world, timeout)


def least(number: int) -> int:
    """The least of the ranks' numbers, each of whom must ask; a process that has joined none has its own."""
    if not dist.is_initialized():
        return number
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    found = torch.tensor(number, device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)
