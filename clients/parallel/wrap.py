"""A model made parallel, in torchtitan's order: tensor parallel -> activation checkpointing -> compile -> fully_shard.

What is wrapped is not the model but a call of it (`Call`): a task may use any method of its model, and what DDP and
FSDP2 must do before and after happens around the whole of it. The model keeps its class and its tensors' names.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from clients.parallel.config import Degrees, ParallelKeys
from hansa.errors import UserError


class Call(nn.Module):
    """A call of anything that takes the model and a batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        """What the function gives."""
        return function(self.model, batch)


def mesh_of(degrees: Degrees, device: torch.device, patience: float) -> DeviceMesh:
    """All ranks, by what a batch is cut for (dp or shard) and tp; all of them call it.

    Args:
        degrees: how many of each.
        device: this rank's.
        patience: seconds that one waits for the others in a collective.
    """
    return _mesh(degrees, device.type, patience)


@cache  # each makes process groups, whose threads wait busily as long as the process lives
def _mesh(degrees: Degrees, kind: str, patience: float) -> DeviceMesh:
    rows = "shard" if degrees.shard > 1 else "dp"
    mesh = init_device_mesh(kind, (degrees.cuts, degrees.tp), mesh_dim_names=(rows, "tp"))
    for group in mesh.get_all_groups():  # torch gives its own timeout to the groups that it makes here
        _set_pg_timeout(timedelta(seconds=patience), group)
    return mesh


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The model's blocks, by name: the outermost members of its ModuleLists and Sequentials that have parameters."""
    found: dict[str, nn.Module] = {}

    def walk(module: nn.Module, prefix: str) -> None:
        for name, child in module.named_children():
            if isinstance(module, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList):
                if any(True for _ in child.parameters()):
                    found[f"{prefix}{name}"] = child
            else:
                walk(child, f"{prefix}{name}.")

    walk(model, "")
    return found


def check(model: nn.Module, degrees: Degrees, keys: ParallelKeys) -> None:
    """Refuses models for which the update would depend on the number of processes, or that cannot be sharded.

    Raises:
        UserError: names what cannot be.
    """
    if degrees.cuts > 1 or keys.accumulation > 1:
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm):
                mend = "use torch.nn.GroupNorm in its place, or set procs = 1 and leave accumulation out"
                said = f"the model has a {type(layer).__name__} ({name}), whose means are of a process's own rows"
                raise UserError(f"site.toml [training] parallel: {said}; {mend}")
    if degrees.tp > 1 and keys.compile and keys.activation_checkpointing:
        said = "compile and activation_checkpointing do not go together under tp"
        raise UserError(f"site.toml [training]: {said}; leave one of them out")  # torch 2.13 saves a mesh as a tensor
    if degrees.shard > 1:
        if len(kinds := {str(p.dtype) for p in model.parameters()}) > 1:
            raise UserError(f"model: parameters of {' and '.join(sorted(kinds))}; to shard it, make them of one type")
        for names in _homes(model):
            if len(names) > 1:
                said = " and ".join(names.values())
                raise UserError(
                    f"model: {said} are one tensor, in different blocks; untie them, or use dp in place of shard"
                )


def wrapped(
    model: nn.Module,
    degrees: Degrees,
    keys: ParallelKeys,
    mesh: DeviceMesh,
    plan: Mapping[str, ParallelStyle],
    device: torch.device,
) -> Call:
    """The call of a model whose tensors lie as the degrees say. Data parallelism comes with the optimiser: see `bench`.

    Args:
        model: as the task makes it, on the CPU; the same at all ranks.
        degrees: how it is spread.
        keys: what else is asked for.
        mesh: of the ranks.
        plan: of tensor parallelism.
        device: where the model goes: piece by piece, so that it never has to be whole there.
    """
    if degrees.tp > 1:
        parallelize_module(model, mesh["tp"], dict(plan))
    parts = list(blocks(model).values()) or [model]
    for block in parts:
        if keys.activation_checkpointing:
            _checkpoint(block)
        if keys.compile:
            block.compile()
    call = Call(model)
    if degrees.shard > 1:
        for block in parts:
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(call, mesh=mesh["shard"])
    return call if degrees.shard > 1 else call.to(device)  # fully_shard has moved it, tensor by tensor


def settle(call: nn.Module) -> None:
    """Gives back the whole tensors that FSDP2 keeps after a pass without a way back: the parts are what counts."""
    for module in call.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _homes(model: nn.Module) -> Iterable[dict[str, str]]:
    """For each parameter, the blocks that it lies in ("": none), and its name there."""
    found: dict[int, dict[str, str]] = {}
    inside = list(blocks(model))
    for name, p in model.named_parameters(remove_duplicate=False):
        block = next((one for one in inside if name.startswith(f"{one}.")), "")
        found.setdefault(id(p), {}).setdefault(block, name)
    return found.values()


def _checkpoint(block: nn.Module) -> None:
    """Instead of torch's wrapper, which would change the names of the tensors."""
    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = again
