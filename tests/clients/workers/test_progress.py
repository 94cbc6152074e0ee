"""What ranks keep of a pass is enough to go on with, whenever they were cut off, and all go on at the same step."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.batches import Batches
from clients.trainer import Trainer
from clients.workers.progress import Progress
from hansa.layout import Layout
from hansa.records import LocalRun
from hansa.seeds import seeded
from hansa.task import Task
from strategies.fedprox import FedProx

CPU = torch.device("cpu")
STEPS = 17


class Clock:
    """Each look takes a second."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def alone(folder: Path, interval: float = 0.0) -> Progress:
    return Progress(folder, 0, interval, lambda number: number, Clock())


class Ranks:
    """What a rank hears when it asks for the least: the other rank's numbers are told beforehand."""

    def __init__(self, *others: int) -> None:
        self.others = list(others)

    def __call__(self, number: int) -> int:
        return min(number, self.others.pop(0))


def kept(folder: Path, rank: int, *steps: int) -> None:
    one = Progress(folder, rank, 0.0, lambda number: number)
    for step in steps:
        one.save(step, {"step": step, "rank": rank}, {"step": step})


def test_nothing_kept_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    assert alone(tmp_path).load(CPU) is None


def test_the_two_newest_steps_are_kept(tmp_path: Path) -> None:
    kept(tmp_path, 0, 3, 9, 20)
    kept(tmp_path, 1, 3, 9)
    names = {path.name for path in tmp_path.iterdir()}
    steps = {"common": (9, 20), "own": (9, 20)}
    assert names == {f"{step:012d}-{name}.0" for name in steps for step in steps[name]} | {
        f"{step:012d}-own.1" for step in (3, 9)
    }


def test_a_rank_that_is_a_step_ahead_goes_back_to_the_other_s(tmp_path: Path) -> None:
    kept(tmp_path, 0, 3, 9, 20)
    kept(tmp_path, 1, 3, 9)
    for rank, other in ((0, 9), (1, 20)):
        found = Progress(tmp_path, rank, 0.0, Ranks(other, 1)).load(CPU)
        assert found == (9, {"step": 9, "rank": rank}, {"step": 9})
    assert alone(tmp_path).load(CPU) == (9, {"step": 9, "rank": 0}, {"step": 9})  # what was ahead is gone


def test_when_one_rank_has_nothing_no_rank_goes_on(tmp_path: Path) -> None:
    kept(tmp_path, 0, 3)
    assert Progress(tmp_path, 0, 0.0, Ranks(-1, 0)).load(CPU) is None


def test_when_one_rank_cannot_read_its_own_no_rank_goes_on(tmp_path: Path) -> None:
    kept(tmp_path, 0, 3)
    assert Progress(tmp_path, 0, 0.0, Ranks(3, 0)).load(CPU) is None


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"PK\x03\x04"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    kept(tmp_path, 0, 3)
    (tmp_path / f"{3:012d}-own.0").write_bytes(damage)
    assert alone(tmp_path).load(CPU) is None


def test_what_is_read_may_run_no_code(tmp_path: Path) -> None:
    """A file that was put there by somebody else is refused as damaged: pickled calls are not made."""
    kept(tmp_path, 0, 3)
    torch.save({"call": Path}, tmp_path / f"{3:012d}-own.0")
    assert alone(tmp_path).load(CPU) is None


def test_steps_are_kept_about_every_interval(tmp_path: Path) -> None:
    """Two looks a step that may be kept, one or none else: by this clock each step takes at most two seconds."""
    one = alone(tmp_path, interval=10.0)
    due = [step for step in range(1, 200) if one.due(step)]
    assert due
    assert all(5 <= later - sooner <= 20 for sooner, later in itertools.pairwise(due))


def test_all_ranks_keep_the_same_steps_though_their_clocks_differ(tmp_path: Path) -> None:
    """The one whose interval is over first decides; the others' wishes are longer."""
    slow = Progress(tmp_path, 0, 1e9, Ranks(*[0] * 9), Clock())
    assert [slow.due(step) for step in range(1, 10)] == [True] * 9


class Noisy(Task):
    """A model with all that has a state of its own: dropout, running means, a counter."""

    kind = "regression"

    def model(self) -> torch.nn.Module:
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        return torch.nn.Sequential(*layers)

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def batch_transform(self, batch: Any) -> Any:
        return batch[0] + 0.1 * torch.randn(()), batch[1]


class Rows(torch.utils.data.Dataset[Any]):
    """Rows that are never twice the same, as augmented images are."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, row: int) -> Any:
        return row / 23 + torch.randn(4), torch.tensor([row % 2.0])


class CutOff(Exception):
    pass


def trained(optimizer: str, workers: int, progress: Progress | None, cut: int | None = None) -> LocalRun:
    """A round's training, cut off in the step after `cut`."""
    task = Noisy()
    with seeded(1, "model"):
        model = task.model()
    layout = Layout.of(model)
    hyper = {"steps": STEPS, "batch_size": 5, "drop_last": False, "optimizer": optimizer, "lr": 0.05, "momentum": 0.9}
    hyper |= {"weight_decay": 0.1, "clip_norm": 1.0, "precision": "bfloat16"}
    hyper |= {} if optimizer == "sgd" else {"momentum": 0.0}
    where = (1, 1, "one")
    batches = Batches(task, Rows(), hyper, where, CPU, workers)
    trainer = Trainer(task, FedProx(mu=0.1), layout, layout.read(model), {}, {}, hyper, CPU, 23, progress=progress)
    left = iter(range(cut if cut is not None else STEPS))

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if next(left, None) is None:
            raise CutOff
        return task.loss(model(batch[0]), batch[1])

    with seeded(*where, "train"):
        return trainer.fit(model, batches, loss=loss)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_pass_that_was_cut_off_twice_ends_bit_for_bit_as_it_would_have(
    tmp_path: Path, optimizer: str, workers: int
) -> None:
    whole = trained(optimizer, workers, None)
    for cut in (7, 6):  # in the second and in the third pass over the rows
        with pytest.raises(CutOff):
            trained(optimizer, workers, alone(tmp_path), cut)
    resumed = trained(optimizer, workers, alone(tmp_path))
    assert torch.equal(resumed.delta, whole.delta)
    assert torch.equal(resumed.counters, whole.counters)
    assert (resumed.steps, resumed.lr_sum) == (STEPS, whole.lr_sum)
    assert torch.equal(resumed.sums["loss"], whole.sums["loss"])
