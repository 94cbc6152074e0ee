"""Memory is what the plan says it is: staged versions count only when a plan names them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clients.memory import MemoryInRam, MemoryOnDisk, MemoryStore
from hansa.errors import UserError

STORES: list[Callable[[Path], MemoryStore]] = [lambda _: MemoryInRam(), lambda folder: MemoryOnDisk(folder / "site")]


@pytest.mark.parametrize("make", STORES)
def test_a_staged_version_and_its_base_are_both_there(make: Callable[[Path], MemoryStore], tmp_path: Path) -> None:
    store = make(tmp_path)
    store.stage("01-a", {"c": torch.ones(2)}, None)
    store.stage("02-b", {"c": torch.zeros(2)}, "01-a")
    assert store.load("01-a")["c"].tolist() == [1, 1]
    assert store.load("02-b")["c"].tolist() == [0, 0]
    assert store.load(None) == {}


@pytest.mark.parametrize("make", STORES)
def test_staging_again_from_the_base_forgets_what_was_dropped(
    make: Callable[[Path], MemoryStore], tmp_path: Path
) -> None:
    store = make(tmp_path)
    store.stage("01-a", {"c": torch.ones(2)}, None)
    store.stage("02-b", {"c": torch.zeros(2)}, "01-a")  # this round did not count
    store.stage("03-b", {"c": torch.full((2,), 3.0)}, "01-a")
    assert store.load("01-a")["c"].tolist() == [1, 1]
    with pytest.raises(UserError, match="02-b is lost"):
        store.load("02-b")


def test_a_version_cannot_name_a_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a version"):
        MemoryOnDisk(tmp_path).load("../secret")


def test_memory_on_disk_outlives_the_object(tmp_path: Path) -> None:
    MemoryOnDisk(tmp_path).stage("01-a", {"c": torch.arange(3.0)}, None)
    assert MemoryOnDisk(tmp_path).load("01-a")["c"].tolist() == [0, 1, 2]
