"""What of a model stays as it is while adapters are trained: where its values come from, and that nobody moves them."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hansa.base import Base
from hansa.errors import UserError
from hansa.layout import FLOATS

MEND = "take a base that fits the task's model, or define Task.base_name"


class Frozen:
    """The tensors of a model that require no gradient. To be made once they lie where they will stay.

    Buffers may change while a model trains (BatchNorm's means), and are put back; a parameter may not.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = [(name, p, _version(p)) for name, p in model.named_parameters() if not p.requires_grad]
        self.buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the buffers back."""
        for buffer, was in self.buffers:
            buffer.copy_(was)

    def check(self) -> None:
        """That no parameter has been written to: torch counts that, so that no tensor has to be read.

        Raises:
            UserError: names one.
        """
        for name, p, version in self.parameters:
            if p.requires_grad or _version(p) != version:
                mend = "let its requires_grad be True when Task.model returns, or leave it alone"
                raise UserError(f"model: parameter {name!r} is not shared (trainable_only), and was changed; {mend}")


@torch.no_grad()
def fill(model: nn.Module, base: Base, called: Callable[[str], str]) -> None:
    """Puts the weights of a file into the model's frozen tensors, one at a time; what else is in it is not read.

    Args:
        model: whose frozen parameters must all be in the file; buffers that it saves are taken if they are.
        base: the file, which is checked first.
        called: what the file calls a tensor of the model.

    Raises:
        UserError: the file is missing or another, or does not fit the model.
    """
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    if not frozen:
        raise UserError(
            "[base]: all parameters of the model require a gradient; freeze those of the base, or remove it"
        )
    base.check()
    names: dict[int, list[str]] = {}  # a tensor that stands at several places may be in the file by any of them
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(called(name))
    saved = model.state_dict().keys()
    try:
        with safe_open(base.path, "pt") as file:
            there = set(file.keys())
            for name, p in frozen.items():
                found = next((one for one in names[id(p)] if one in there), None)
                if found is None:
                    raise UserError(f"[base]: {base.path} has no tensor {called(name)!r}; {MEND}")
                _put(file.get_tensor(found), p, name, base.path)
            for name, buffer in model.named_buffers():
                if name in saved and called(name) in there:
                    _put(file.get_tensor(called(name)), buffer, name, base.path)
    except SafetensorError as error:
        raise UserError(f"[base]: {base.path} is no safetensors file: {error}; {MEND}") from error


def _put(value: Tensor, into: Tensor, name: str, path: Path) -> None:
    alike = value.dtype == into.dtype or (value.dtype in FLOATS and into.dtype in FLOATS)
    if value.shape != into.shape or not alike:
        theirs, ours = f"{tuple(value.shape)} {value.dtype}", f"{tuple(into.shape)} {into.dtype}"
        raise UserError(f"[base]: {path}: tensor {name!r} is {theirs} where the model has {ours}; {MEND}")
    into.copy_(value)


def _version(p: Tensor) -> int:
    """How often it has been written to; of a tensor in parts, this process's part."""
    return int(getattr(p, "_local_tensor", p)._version)
