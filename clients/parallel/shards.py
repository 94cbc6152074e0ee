"""A vector [P] into the ranks' parts of a model and back, tensor by tensor, bit for bit.

A tensor is whole at a rank, or a DTensor of which the rank holds a part: cut for tensor parallelism first, its piece
then for FSDP2.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement

from hansa.errors import UserError
from hansa.layout import Entry, Layout

ORDER = ("tp", "shard")  # of cutting, by the mesh's dimensions


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, on the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part(full: Tensor, like: Tensor, rank: int | None = None) -> Tensor:
    """The part of a full tensor that a rank (None: this one) holds where it is spread as `like` is: a view."""
    if not isinstance(like, DTensor):
        return full
    place = _place(like, dist.get_rank() if rank is None else rank)
    for dimension, placement in _axes(like):
        if (along := _along(placement)) is not None:
            pieces = torch.chunk(full, like.device_mesh.size(dimension), along)
            full = pieces[place[dimension]] if place[dimension] < len(pieces) else full.narrow(along, 0, 0)
    return full


@torch.no_grad()
def load(vector: Tensor, model: nn.Module, layout: Layout) -> None:
    """Puts a vector [P], which each rank has, into the model: each rank takes what it holds, without a word."""
    if vector.shape != (layout.size,):
        raise UserError(f"layout: a vector of shape {tuple(vector.shape)} where ({layout.size},) is needed")
    for entry, tensor in _floats(model, layout):
        local(tensor).copy_(part(entry.of(vector), tensor))


@torch.no_grad()
def read(model: nn.Module, layout: Layout, out: Tensor | None) -> None:
    """Fills rank 0's vector [P] from the model; the others send what they hold, and give None."""
    for entry, tensor in _floats(model, layout):
        if not isinstance(tensor, DTensor):
            if out is not None:
                entry.of(out).copy_(tensor)
            continue
        if (senders := _senders(tensor)) is None:
            continue  # another rank holds the same
        if out is None:
            if dist.get_rank() in senders and tensor.to_local().numel():
                dist.send(tensor.to_local().contiguous(), 0)
            continue
        for rank in senders:
            into = part(entry.of(out), tensor, rank)
            if rank == 0:
                into.copy_(tensor.to_local())
            elif into.numel():
                got = torch.empty(into.shape, dtype=tensor.dtype, device=tensor.to_local().device)
                dist.recv(got, rank)
                into.copy_(got)


@torch.no_grad()
def subtract(model: nn.Module, layout: Layout, anchor: Tensor, out: Tensor) -> None:
    """Fills memory [P] that all ranks share with the model less an anchor [P]: each float is written by one rank.

    Of a tensor that several ranks hold alike, the first of them writes it, or each its share where all of them do.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    first, end = layout.size * rank // world, layout.size * (rank + 1) // world
    for entry, tensor in _floats(model, layout):
        mine = local(tensor).to("cpu", torch.float32)
        if not isinstance(tensor, DTensor):
            here = slice(max(first, entry.offset), min(end, entry.offset + entry.size))
            if here.start < here.stop:
                of = slice(here.start - entry.offset, here.stop - entry.offset)
                torch.sub(mine.reshape(-1)[of], anchor[here], out=out[here])
        elif rank in (_senders(tensor) or ()):
            torch.sub(mine, part(entry.of(anchor), tensor), out=part(entry.of(out), tensor))


def share(entry: Entry, vector: Tensor, like: Tensor) -> Tensor:
    """This rank's part of an entry's part of a vector, beside the tensor that it belongs to."""
    return part(entry.of(vector), like).to(local(like).device)


def copies(tensor: Tensor) -> int:
    """At how many ranks the same part lies."""
    world = dist.get_world_size()
    if not isinstance(tensor, DTensor):
        return world
    mesh = tensor.device_mesh
    cut = [mesh.size(d) for d, placement in enumerate(tensor.placements) if _along(placement) is not None]
    return world // torch.Size(cut).numel()


@torch.no_grad()
def check_buffers(model: nn.Module, layout: Layout) -> None:
    """Refuses buffers that training has moved apart: their values would depend on how many processes there are.

    Raises:
        UserError: names one.
    """
    tensors = dict(model.named_buffers())
    for entry in (*layout.floats[len(layout.parameters) :], *layout.counters):
        mine = tensors[entry.name]
        first = mine.clone()
        dist.broadcast(first, 0)
        apart = torch.tensor(float(not torch.equal(mine, first)), device=mine.device)
        dist.all_reduce(apart)
        if apart:
            mend = "take a layer that keeps nothing, e.g. torch.nn.GroupNorm, or set procs = 1"
            raise UserError(f"model: buffer {entry.name!r} keeps something of the rows that a process sees; {mend}")


def _floats(model: nn.Module, layout: Layout) -> Iterator[tuple[Entry, Tensor]]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    yield from ((entry, tensors[entry.name]) for entry in layout.floats)


def _axes(tensor: DTensor) -> list[tuple[int, Placement]]:
    names = tensor.device_mesh.mesh_dim_names or ()
    return [(at := names.index(axis), tensor.placements[at]) for axis in ORDER if axis in names]


def _along(placement: Placement) -> int | None:
    """The dimension that is cut; FSDP2 has a placement of its own for what tensor parallelism has cut before."""
    return getattr(placement, "dim", None)


def _place(tensor: DTensor, rank: int) -> list[int]:
    found: list[list[int]] = (tensor.device_mesh.mesh == rank).nonzero().tolist()
    return found[0]


def _senders(tensor: DTensor) -> list[int] | None:
    """Ranks that hold the parts of a tensor, each once; None where the mesh is one without rank 0."""
    mesh = tensor.device_mesh.mesh
    if not (mesh == 0).any():
        return None
    for dimension, placement in enumerate(tensor.placements):
        if _along(placement) is None:
            mesh = mesh.narrow(dimension, 0, 1)
    ranks: list[int] = mesh.flatten().tolist()
    return ranks
