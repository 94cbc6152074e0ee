"""Records to frames and files, and back, bit for bit.

A vector travels as its bytes: float32 or int64, little-endian. The upload of one site and plan is one piece: the
vectors of the strategy's parts in the order in which it declares them, then the counters. Small ones are in the frames;
large ones are files, which are mapped, not read.
"""

import json
import math
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hansa.draft import Draft
from hansa.errors import UserError
from hansa.files import write_all
from hansa.records import Broadcast, Part, Plan, Refusal, Reply, Upload, Vectors
from hansa.wire import link_pb2 as wire
from hansa.wire.rules import INLINE

PARAMS, COUNTERS, SHARED = "params", "counters", "shared/"  # names of a plan's vectors
MOST_ROWS = 1 << 40  # of one site
VERSION = re.compile(r"[\w.-]{1,64}", re.ASCII)
Kind = Literal["train", "evaluate"]
Split = Literal["valid", "test"]


def view(tensor: Tensor) -> memoryview:
    """A CPU tensor's bytes. Not copied if it is contiguous."""
    array = tensor.detach().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


def numbers(
    source: Path | bytes | bytearray, dtype: Literal["<f4", "<i8"], count: int | None = None, offset: int = 0
) -> Tensor:
    """Numbers of a file or of bytes as a tensor. A file is read when they are touched, and is never written to.

    Args:
        source: bytes, of which a bytearray is not copied; or the path of a file, which is mapped.
        dtype: of the numbers.
        count: of them; all to the end if None.
        offset: bytes before the first.

    Raises:
        UserError: the source does not hold so many, or no whole number of them.
    """
    held = source.stat().st_size if isinstance(source, Path) else len(source)
    width, there = np.dtype(dtype).itemsize, held - offset
    if there < 0 or (there % width if count is None else there < count * width):
        where = source.name if isinstance(source, Path) else "a vector"
        raise UserError(
            f"{where}: {there} bytes where {count if count is not None else 'whole'} numbers of {width} are needed"
        )
    size = there // width if count is None else count
    if not size:
        return torch.from_numpy(np.empty(0, dtype))
    memory = _mapped(source, offset + width * size) if isinstance(source, Path) else source
    array = np.frombuffer(memory, dtype, size, offset)
    # A tensor is writable, bytes are not; and where numbers lie askew, all that follows is slow or wrong.
    return torch.from_numpy(array if array.flags.writeable and array.flags.aligned else array.copy())


def _mapped(path: Path, size: int) -> mmap.mmap:
    """The first bytes of a file; what is written to them stays in memory."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)


# plans


def plan_vectors(sent: Broadcast) -> dict[str, memoryview]:
    """What a site fetches for a plan, by name: not copied, so leave the tensors as they are."""
    shared = {SHARED + name: vector for name, vector in sent.shared.items()}
    return {n: view(v) for n, v in {PARAMS: sent.params, COUNTERS: sent.counters, **shared}.items()}


def to_plan(plan: Plan, id: str, site: str, deadline: float = 0.0) -> wire.Plan:
    """A plan as one site gets it, but for its vectors, which are the same for all sites.

    Args:
        plan: of the round.
        id: the same when the plan is sent again.
        site: which gets it: it learns only its own version of memory.
        deadline: seconds from now; 0: none.

    Raises:
        UserError: a hyper-parameter that JSON does not hold.
    """
    try:
        hyper = json.dumps(dict(plan.hyper), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"hyper-parameters of round {plan.round}: {error}; use numbers, text, lists and tables"
        ) from None
    frame = wire.Plan(id=id, run=plan.run, seed=plan.seed, round=plan.round, kind=plan.kind, split=plan.split)
    frame.hyper, frame.memory, frame.deadline = hyper, plan.memory.get(site, ""), deadline
    return frame


def from_plan(frame: wire.Plan, site: str, files: Mapping[str, Path]) -> Plan:
    """The plan that a site got, its vectors mapped from files, those that are in the frame excepted.

    Raises:
        UserError: the frame makes no sense.
    """
    if frame.kind not in get_args(Kind) or frame.split not in get_args(Split):
        raise UserError(
            f"plan {frame.id!r}: kind {frame.kind!r}, split {frame.split!r} are not known; update hansa here"
        )
    here: dict[str, Path | bytes] = {**files, **{b.name: b.data for b in frame.vectors if b.name not in files}}
    if missing := {PARAMS, COUNTERS} - set(here):
        raise UserError(f"plan {frame.id!r}: it comes without {', '.join(sorted(missing))}")
    try:
        hyper = json.loads(frame.hyper)
    except ValueError:
        hyper = None
    if not isinstance(hyper, dict):
        raise UserError(f"plan {frame.id!r}: its hyper-parameters are not a JSON object")
    shared = {n.removeprefix(SHARED): numbers(v, "<f4") for n, v in here.items() if n.startswith(SHARED)}
    sent = Broadcast(numbers(here[PARAMS], "<f4"), numbers(here[COUNTERS], "<i8"), shared)
    memory = {site: frame.memory} if frame.memory else {}
    return Plan(frame.run, frame.seed, frame.round, frame.kind, frame.split, sent, hyper, memory)  # type: ignore[arg-type]


# answers


def upload_numbers(plan: Plan, parts: Mapping[str, Part], n_counters: int) -> tuple[int, int]:
    """How many float32 and int64 numbers the upload of a plan has."""
    return (sum(part.size for part in parts.values()), n_counters) if plan.kind == "train" else (0, 0)


def put_upload(
    reply: Reply,
    parts: Mapping[str, Part],
    frame: wire.Result,
    path: Path,
    inline: int = INLINE,
    draft: Draft | None = None,
) -> None:
    """Puts a train plan's upload into the reply's frame if it is small, else into a file; neither if there is none.

    Args:
        reply: of the site.
        parts: that the strategy declares.
        frame: of the reply.
        path: of the file.
        inline: bytes up to which it is small.
        draft: becomes that file if the upload begins with it; it must not be used afterwards.

    Raises:
        UserError: the strategy's `finish` gave other parts than it declares.
    """
    if reply.counters is None:
        return
    pieces = [*_views(reply.upload, parts), view(reply.counters)]
    size = sum(piece.nbytes for piece in pieces)
    if size <= inline:
        frame.upload.size, frame.upload.data = size, b"".join(pieces)
        return
    path.unlink(missing_ok=True)
    if draft is not None and draft.is_all_of(reply.upload[next(iter(parts))]):
        draft.path.replace(path)
        del pieces[0]
    with open(path, "ab", buffering=0) as file:
        for piece in pieces:
            write_all(file.fileno(), piece)


def _views(upload: Upload, parts: Mapping[str, Part]) -> list[memoryview]:
    """The bytes of an upload's parts, in their order."""
    if set(upload) != set(parts):
        raise UserError(f"[strategy] finish gives {sorted(upload)} where parts declares {sorted(parts)}")
    for name, part in parts.items():
        if upload[name].dtype != torch.float32 or upload[name].shape != (part.size,):
            found = f"{tuple(upload[name].shape)} {upload[name].dtype}"
            raise UserError(f"[strategy] part {name!r} is {found} where ({part.size},) torch.float32 is declared")
    return [view(upload[name]) for name in parts]


def to_result(reply: Reply, plan: str, round: int) -> wire.Result:
    """A reply as a frame, but for its upload."""
    frame = wire.Result(plan=plan, round=round, examples=reply.examples, memory=reply.memory or "")
    for name, sums in reply.sums.items():
        frame.sums.add(name=name, shape=sums.shape, values=sums.double().reshape(-1).tolist())
    return frame


def from_result(
    frame: wire.Result, site: str, upload: Path | bytes | None, parts: Mapping[str, Part], n_counters: int
) -> Reply:
    """A site's reply, its upload mapped from a file or copied from bytes.

    Raises:
        UserError: the frame makes no sense.
    """
    if not 0 <= frame.examples <= MOST_ROWS:
        raise UserError(f"{site}: a weight of {frame.examples}: it must be a number of rows, 0 to {MOST_ROWS}")
    if frame.memory and not VERSION.fullmatch(frame.memory):
        raise UserError(
            f"{site}: memory version {frame.memory[:64]!r} is not letters, digits, '.', '_' and '-', 64 at most"
        )
    sums = _sums(frame, site)
    if upload is None:
        return Reply(site, frame.examples, sums=sums, memory=frame.memory or None)
    vectors, at = {}, 0
    for name, part in parts.items():
        vectors[name] = numbers(upload, "<f4", part.size, at)
        at += 4 * part.size
    counters = numbers(upload, "<i8", n_counters, at)
    return Reply(site, frame.examples, vectors, counters, sums, frame.memory or None)


def from_refused(frame: wire.Refused, site: str) -> Refusal:
    """A site's refusal."""
    return Refusal(site, f"{frame.line} ({frame.code})" if frame.code else frame.line)


def locate(index: int, parts: Mapping[str, Part]) -> tuple[str, int]:
    """To which part a float of an upload belongs, and which of the part's it is."""
    for name, part in parts.items():
        if index < part.size:
            return name, index
        index -= part.size
    raise IndexError(index)


def _sums(frame: wire.Result, site: str) -> Vectors:
    sums: dict[str, Tensor] = {}
    for one in frame.sums:
        shape = tuple(one.shape)
        most = max(1, len(one.values))  # no dimension is longer, also where another is 0
        if one.name in sums or len(shape) > 8 or math.prod(shape) != len(one.values) or max(shape, default=0) > most:
            raise UserError(
                f"{site}: metric {one.name!r} comes twice, or as {len(one.values)} numbers of shape {shape}"
            )
        sums[one.name] = torch.tensor(list(one.values), dtype=torch.float64).view(shape)
    return sums
