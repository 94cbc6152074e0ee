"""Which rows of a batch are a process's own: one global batch, cut without padding and without leaving a row out."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from clients.batches import Batches
from hansa.errors import UserError
from hansa.evaluate import to_device
from hansa.seeds import seeded, torch_generator
from hansa.task import Dataset, Task, collate


@dataclass(frozen=True)
class Share:
    """A process's place in the cut of a batch.

    Args:
        index: which part is its own.
        of: how many parts there are.
        accumulation: in how many pieces it takes its part, at most.
    """

    index: int
    of: int
    accumulation: int = 1

    def cut(self, rows: Sequence[int]) -> list["Piece"]:
        """Its pieces of a batch's rows, as many at each process; one that would be empty has a row of weight 0."""
        pieces = min(self.accumulation, -(-len(rows) // self.of))
        own = np.array_split(np.asarray(rows), self.of)[self.index]
        split = [part.tolist() for part in np.array_split(own, pieces)]
        return [Piece(part or [int(rows[0])], len(part)) for part in split]


@dataclass(frozen=True)
class Piece:
    """Rows that go through the model at once.

    Args:
        rows: by number.
        counted: how many of them are this process's own; 0: one row that only keeps it in step with the others.
    """

    rows: list[int]
    counted: int


@dataclass
class Slice:
    """A process's pieces of one global batch.

    Args:
        pieces: its own.
        rows: of the global batch.
        batches: of the pieces, made as they are asked for.
        purpose: of its random numbers.
    """

    pieces: list[Piece]
    rows: int
    batches: Iterator[Any]
    purpose: tuple[int, int, str, str, int, int, int]  # seed, round, site, "train", pass, step, part

    def seeded(self) -> contextlib.AbstractContextManager[None]:
        """Random numbers of this step and part: dropout and augmentation differ by process, and can be repeated."""
        return seeded(*self.purpose)


class ParallelBatches(Batches):
    """One round's training batches, of which each process makes its own part.

    Args:
        task, dataset, hyper, purpose, device, workers: see Batches, whose rows and order these are.
        share: this process's.
        dtype: of floats in a batch; None: as they come.
    """

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        hyper: Mapping[str, Any],
        purpose: tuple[int, int, str],
        device: torch.device,
        workers: int,
        share: Share,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(task, dataset, hyper, purpose, device, workers)
        self.share, self.dtype = share, dtype

    def __iter__(self) -> Iterator[Any]:
        """Batches for a loop of the strategy's own: there are none.

        Raises:
            UserError: always.
        """
        raise UserError(
            "[strategy]: it goes over the batches itself, of which a process has but a part; take one that uses "
            "ctx.fit, or set procs = 1 in site.toml"
        )

    def slices(self, after: int = 0) -> Iterator[Slice]:
        """One round's work: this process's part of each batch, as it goes on after the first so many."""
        self.passes += 1
        seed, round, site = self.purpose
        number, done = self.passes, 0
        for rows in self._epochs(torch_generator(seed, round, site, "batches", number)):
            cuts = [self.share.cut(one) for one in rows[: self.steps - done]]
            gone = min(max(0, after - done), len(cuts))
            unread = gone if gone == len(cuts) or not self.workers else 0  # loaders' own draws begin with each epoch
            loaded = self._load([piece.rows for cut in cuts[unread:] for piece in cut], number, done)
            for _ in range(sum(len(cut) for cut in cuts[unread:gone])):
                next(loaded)
            done += gone
            for cut, whole in zip(cuts[gone:], rows[gone:], strict=False):
                purpose = (seed, round, site, "train", number, done, self.share.index)
                yield Slice(cut, len(whole), loaded, purpose)
                done += 1
            if done == self.steps:
                return

    def _load(self, rows: list[list[int]], number: int, done: int) -> Iterator[Any]:
        if not self.workers:
            loaded = (collate(self.dataset, one) for one in rows)
        else:
            generator = torch_generator(*self.purpose, "workers", number, done, self.share.index)
            loaded = iter(
                torch.utils.data.DataLoader(
                    self.dataset,  # type: ignore[arg-type]  # any map-style dataset will do
                    batch_sampler=rows,
                    num_workers=self.workers,
                    generator=generator,
                )
            )
        for batch in loaded:
            yield self.task.batch_transform(self._cast(to_device(batch, self.device)))

    def _cast(self, batch: Any) -> Any:
        return batch if self.dtype is None else cast(batch, self.dtype)


def cast(batch: Any, dtype: torch.dtype) -> Any:
    """A batch whose floats have another type."""
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, batch)
