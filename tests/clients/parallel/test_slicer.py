"""A batch is cut so that each row is one process's, and none waits for another."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from clients.batches import Batches
from clients.config import TrainingTable
from clients.parallel.slicer import ParallelBatches, Share
from hansa.task import Task

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6))
def test_each_row_is_counted_once_and_all_take_as_many_pieces(rows: int, processes: int, accumulation: int) -> None:
    cuts = [Share(index, processes, accumulation).cut(range(rows)) for index in range(processes)]
    counted = [row for cut in cuts for piece in cut for row in piece.rows[: piece.counted]]
    assert sorted(counted) == list(range(rows))
    assert len({len(cut) for cut in cuts}) == 1
    assert 1 <= len(cuts[0]) <= accumulation
    assert all(piece.rows for cut in cuts for piece in cut)


def test_seven_rows_are_four_and_three() -> None:
    assert [[piece.counted for piece in Share(index, 2).cut(range(7))] for index in range(2)] == [[4], [3]]


def test_three_rows_over_eight_processes_are_three_and_not_eight() -> None:
    """torch's DistributedSampler pads: it would train on 8."""
    assert sum(piece.counted for index in range(8) for piece in Share(index, 8).cut(range(3))) == 3


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), st.integers(1, 11), st.booleans())
def test_together_they_are_the_batches_of_one_process(
    rows: int, size: int, processes: int, accumulation: int, steps: int, drop: bool
) -> None:
    """In the same order, over epochs' ends and in a second pass."""
    data = TensorDataset(torch.arange(rows))
    hyper = TrainingTable(steps=steps, batch_size=size, drop_last=drop).hyper(1)
    where = (Task(), data, hyper, (0, 1, "a"), CPU, 0)
    alone = Batches(*where)
    shares = [ParallelBatches(*where, Share(index, processes, accumulation)) for index in range(processes)]
    for _ in range(2):
        whole = [batch[0].tolist() for batch in alone]
        cut = [list(one.slices()) for one in shares]
        together = [
            np.concatenate([piece.rows[: piece.counted] for part in parts for piece in part.pieces]).tolist()
            for parts in zip(*cut, strict=True)
        ]
        assert together == whole
        assert [[part.rows for part in one] for one in cut] == [[len(batch) for batch in whole]] * processes
