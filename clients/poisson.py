"""Training rows as DP-SGD needs them: each step draws every unit by a secret coin of its own."""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hansa.errors import UserError
from hansa.evaluate import to_device
from hansa.task import Dataset, Task, collate
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream

Rows = NDArray[np.int64]  # by number


@dataclass(frozen=True)
class Piece:
    """Rows that go through the model at once: whole units, or a part of one that is too large for that.

    Args:
        rows: those of a unit lie together.
        sizes: [U], how many rows each unit has here.
        whole: whether all rows of its units are here.
        last: whether the unit of the last row ends here.
    """

    rows: Rows
    sizes: Rows
    whole: bool = True
    last: bool = True


def rows_of_units(ids: Iterable[Hashable]) -> list[Rows]:
    """The rows of each id, ids in the order of their first rows."""
    found: dict[Hashable, list[int]] = {}
    for number, one in enumerate(ids):
        found.setdefault(one, []).append(number)
    return [np.array(rows, np.int64) for rows in found.values()]


class PoissonBatches:
    """The draws of one plan, which can be gone over once: the steps that they cost are then spent.

    Args:
        task: may change rows on the way (`batch_transform`).
        dataset: the site's training rows.
        mechanism: says how many units there are, and the chance of each to be drawn.
        stream: the coins.
        device: where the rows go.
        units: the rows of each unit; None: each row is one.
        workers: processes that load rows.
    """

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        mechanism: DpSgd,
        stream: Stream,
        device: torch.device,
        units: Sequence[Rows] | None = None,
        workers: int = 0,
    ) -> None:
        self.task, self.dataset, self.mechanism, self.stream = task, dataset, mechanism, stream
        self.device, self.units, self.workers = device, units, workers
        there = len(dataset) if units is None else len(units)
        if there != mechanism.units:
            raise ValueError(f"the mechanism is for {mechanism.units} units, and there are {there}")
        if units and len(np.unique(rows := np.concatenate(units))) < len(rows):
            raise ValueError("a row is in two units: clipping the one would not bound the other")
        self.steps, self.gone = mechanism.steps, False

    def __iter__(self) -> Iterator[Any]:
        """Batches for a loop without privacy: there are none.

        Raises:
            UserError: always.
        """
        raise UserError("[dp]: the strategy goes over the batches itself, without clipping; take one that uses ctx.fit")

    def draws(self, most: int) -> Iterator[Iterator[tuple[Piece, Any]]]:
        """Each step's pieces with their batches, loaded one by one; an empty draw has none.

        Args:
            most: rows of a piece.

        Raises:
            UserError: the draws were gone over before.
        """
        if self.gone:
            raise UserError("[dp]: the strategy trains twice in a round; what is accounted for is one ctx.fit")
        self.gone = True
        steps, ahead = itertools.tee(list(self._cut(self._draw(), most)) for _ in range(self.steps))
        loaded = self._load(piece.rows.tolist() for pieces in ahead for piece in pieces)
        for pieces in steps:
            yield zip(pieces, itertools.islice(loaded, len(pieces)), strict=True)

    def alone(self, row: int) -> Any:
        """A batch of one row."""
        return self.task.batch_transform(to_device(collate(self.dataset, [row]), self.device))

    def _draw(self) -> list[Rows]:
        """The rows of each unit that is drawn."""
        drawn = np.flatnonzero(self.stream.coins(self.mechanism.sample_rate, self.mechanism.units))
        return list(drawn.reshape(-1, 1)) if self.units is None else [self.units[number] for number in drawn.tolist()]

    def _cut(self, units: Iterable[Rows], most: int) -> Iterator[Piece]:
        waiting: list[Rows] = []
        room = most
        for unit in units:
            if waiting and len(unit) > room:
                yield _whole(waiting)
                waiting, room = [], most
            if len(unit) <= most:
                waiting.append(unit)
                room -= len(unit)
                continue
            for start in range(0, len(unit), most):
                part = unit[start : start + most]
                yield Piece(part, np.array([len(part)]), False, start + most >= len(unit))
        if waiting:
            yield _whole(waiting)

    def _load(self, pieces: Iterable[list[int]]) -> Iterator[Any]:
        if not self.workers:
            loaded = (collate(self.dataset, rows) for rows in pieces)
        else:
            loaded = iter(
                torch.utils.data.DataLoader(
                    self.dataset,  # type: ignore[arg-type]  # any map-style dataset will do
                    batch_sampler=pieces,
                    num_workers=self.workers,
                )
            )
        for batch in loaded:
            yield self.task.batch_transform(to_device(batch, self.device))


def _whole(units: Sequence[Rows]) -> Piece:
    return Piece(np.concatenate(units), np.array([len(unit) for unit in units]))
