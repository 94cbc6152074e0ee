"""A model's shared tensors as one float32 vector, and back, bit for bit.

P = shared floats (parameters first, then float buffers), C = integers in integer buffers.
"""

import difflib
import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hansa.errors import UserError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)  # each goes to float32 and back without loss
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Entry:
    """One tensor of the model: where it lies in the vector (floats) or among the counters (integers)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Literal["parameter", "buffer", "counter"]
    offset: int  # elements

    @property
    def size(self) -> int:
        """Elements."""
        return torch.Size(self.shape).numel()

    def of(self, vector: Tensor) -> Tensor:
        """This tensor's part of a vector, as a view in the tensor's shape."""
        return vector[self.offset : self.offset + self.size].view(self.shape)


class Layout:
    """Names, shapes, dtypes and offsets of the tensors that a federation shares.

    Float parameters and float buffers go into the vector; integer buffers (`num_batches_tracked`) are counters, which
    are never averaged. A tied tensor stands once, under its first name; buffers that the model does not save are left
    out.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.floats = tuple(e for e in entries if e.kind != "counter")
        self.counters = tuple(e for e in entries if e.kind == "counter")
        self.parameters = tuple(e for e in self.floats if e.kind == "parameter")
        self._places: WeakKeyDictionary[nn.Module, _Places] = WeakKeyDictionary()

    @classmethod
    def of(
        cls, module: nn.Module, only: Sequence[str] = ("*",), without: Sequence[str] = (), trainable: bool = False
    ) -> "Layout":
        """The layout of a module's tensors whose names match `only` and not `without` (shell patterns).

        With `trainable` it is of parameters that require a gradient and of nothing else: no buffer, no counter.

        Raises:
            UserError: a dtype that a float32 vector cannot hold, a tensor without a shape yet, or a pattern that
                matches no tensor.
        """
        tensors = [(name, tensor) for name, tensor in _tensors(module) if tensor.requires_grad or not trainable]
        for pattern in [*only, *without]:
            _check_pattern(pattern, [name for name, _ in tensors])
        chosen = [(n, t) for n, t in tensors if matches(n, only) and not matches(n, without)]
        kinds: list[Literal["parameter", "buffer", "counter"]] = ["parameter", "buffer", "counter"]
        entries: list[Entry] = []
        for kind in kinds:
            offset = sum(e.size for e in entries) if kind == "buffer" else 0
            for name, tensor in chosen:
                if _kind(name, tensor) == kind:
                    entries.append(Entry(name, tuple(tensor.shape), tensor.dtype, kind, offset))
                    offset += tensor.numel()
        return cls(entries)

    @cached_property
    def size(self) -> int:
        """P, the number of shared floats."""
        return sum(e.size for e in self.floats)

    @cached_property
    def n_parameters(self) -> int:
        """The number of floats that belong to parameters: they come first in the vector."""
        return sum(e.size for e in self.parameters)

    @cached_property
    def n_counters(self) -> int:
        """C, the number of integers."""
        return sum(e.size for e in self.counters)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes, dtypes, kinds and offsets: two ends with one digest mean the same tensors."""
        rows = [[e.name, list(e.shape), str(e.dtype), e.kind, e.offset] for e in (*self.floats, *self.counters)]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    @torch.no_grad()
    def read(self, module: nn.Module, out: Tensor | None = None) -> Tensor:
        """The module's shared floats, [P] float32 on the CPU; `out` is filled in place of a new vector."""
        vector = torch.empty(self.size) if out is None else out
        tensors = self._tensors(module)
        for entry in self.floats:
            entry.of(vector).copy_(self._same(entry, tensors))
        return vector

    @torch.no_grad()
    def write(self, vector: Tensor, module: nn.Module) -> None:
        """Puts a vector [P] back into the module."""
        if vector.shape != (self.size,):
            raise UserError(f"layout: a vector of shape {tuple(vector.shape)} where ({self.size},) is needed")
        tensors = self._tensors(module)
        for entry in self.floats:
            self._same(entry, tensors).copy_(entry.of(vector))

    @torch.no_grad()
    def read_counters(self, module: nn.Module) -> Tensor:
        """The module's integer buffers, [C] int64 on the CPU."""
        counters = torch.empty(self.n_counters, dtype=torch.int64)
        tensors = self._tensors(module)
        for entry in self.counters:
            entry.of(counters).copy_(self._same(entry, tensors))
        return counters

    @torch.no_grad()
    def write_counters(self, counters: Tensor, module: nn.Module) -> None:
        """Puts counters [C] back into the module."""
        if counters.shape != (self.n_counters,):
            raise UserError(f"layout: counters of shape {tuple(counters.shape)} where ({self.n_counters},) is needed")
        tensors = self._tensors(module)
        for entry in self.counters:
            self._same(entry, tensors).copy_(entry.of(counters))

    def locate(self, index: int) -> str:
        """Whose element lies at an index of the vector, e.g. `"fc.weight[3, 17]"`."""
        for entry in self.floats:
            if entry.offset <= index < entry.offset + entry.size:
                where = torch.unravel_index(torch.tensor(index - entry.offset), entry.shape)
                return f"{entry.name}[{', '.join(str(int(i)) for i in where)}]"
        raise IndexError(index)

    def check(self, other: "Layout") -> None:
        """Raises UserError naming the first tensor in which another layout differs from this one."""
        ours = {e.name: e for e in (*self.floats, *self.counters)}
        theirs = {e.name: e for e in (*other.floats, *other.counters)}
        for name in ours | theirs:
            a, b = ours.get(name), theirs.get(name)
            if a != b:
                raise UserError(f"model: tensor {name!r} is {_show(b)} where the federation has {_show(a)}")

    def _tensors(self, module: nn.Module) -> dict[str, Tensor]:
        places = self._places.get(module)
        if places is None or not places.hold():
            places = self._places[module] = _Places(module)
        return places.tensors

    def _same(self, entry: Entry, tensors: dict[str, Tensor]) -> Tensor:
        tensor = tensors.get(entry.name)
        if tensor is None or tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
            found = "missing" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"
            raise UserError(f"model: tensor {entry.name!r} is {found} where the federation has {_show(entry)}")
        return tensor


class _Places:
    """A module's tensors, found once: to walk through a small module costs more than to copy it."""

    def __init__(self, module: nn.Module) -> None:
        self.tensors = dict(_tensors(module))
        homes: list[dict[str, Any]] = [
            home for one in module.modules() for home in (vars(one)["_modules"], one._parameters, one._buffers)
        ]
        self._held = [(home, name, thing) for home in homes for name, thing in home.items()]

    def hold(self) -> bool:
        """Whether each is still where it was found."""
        return all(home.get(name) is thing for home, name, thing in self._held)


def chunks(length: int, size: int = 1 << 18) -> Iterator[slice]:
    """Slices of at most `size` elements that cover a vector: bounded temporaries for work on a model-sized one."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a tensor's name matches one of some shell patterns, e.g. "head.*"."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then the buffers that the module saves; a shared tensor once, under its first name."""
    yield from module.named_parameters()
    unsaved = {
        f"{prefix}.{name}" if prefix else name
        for prefix, child in module.named_modules()
        for name in child._non_persistent_buffers_set
    }
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name not in unsaved)


def _kind(name: str, tensor: Tensor) -> Literal["parameter", "buffer", "counter"]:
    if is_lazy(tensor):
        raise UserError(f"model: tensor {name!r} has no shape yet; give lazy layers their sizes in Task.model()")
    if tensor.dtype in FLOATS:
        return "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
    if tensor.dtype in INTEGERS and not isinstance(tensor, nn.Parameter):
        return "counter"
    raise UserError(f"model: tensor {name!r} is {tensor.dtype}; use float32, float16 or bfloat16, e.g. model.float()")


def _check_pattern(pattern: str, names: Sequence[str]) -> None:
    if names and not fnmatch.filter(names, pattern):
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.4) or names[:1]
        raise UserError(f"model: the pattern {pattern!r} matches no tensor; the nearest name is {near[0]!r}")


def _show(entry: Entry | None) -> str:
    return "missing" if entry is None else f"{entry.shape} {entry.dtype} ({entry.kind}, at {entry.offset})"
