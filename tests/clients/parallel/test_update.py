"""The site's update does not depend on how many processes computed it, nor on how the model lies in them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.clients.parallel.conftest import Pool

FLOAT64, LAYOUT, FLOAT32 = 1e-12, 1e-6, 1e-5
FAMILIES: dict[str, tuple[int, dict[str, int]]] = {
    "ddp": (2, {"dp": 2}),
    "fsdp2": (2, {"shard": 2}),
    "tp": (2, {"tp": 2}),
    "fsdp2-tp": (4, {"shard": 2, "tp": 2}),
}
WIDE = {"ddp4": (4, {"dp": 4}), "fsdp4": (4, {"shard": 4})}
ALONE: dict[str, tuple[int, dict[str, int]]] = {"alone": (1, {})}


def check(found: dict[str, Any]) -> None:
    assert found["moved"] > 0.005
    assert found["float64"] <= FLOAT64
    assert found["layout"] <= LAYOUT
    assert found["float32"] <= FLOAT32
    assert found["loss"] <= FLOAT32
    assert found["same"] == [True, True, True]


def update(pools: "Callable[[int], Pool]", family: str, **given: Any) -> dict[str, Any]:
    """23 rows in batches of 8: the last has 7, which is cut into 4 and 3, or 2, 2, 2 and 1."""
    world, degrees = {**FAMILIES, **WIDE, **ALONE}[family]
    keys = {"parallel": degrees, **given.pop("keys", {})}
    same = {"task": "words", "strategy": "fedavg", "rows": 23, "training": {}, **given}
    found: dict[str, Any] = pools(world).ask("update", keys=keys, **same)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_an_update_is_that_of_one_process(pools: "Callable[[int], Pool]", family: str) -> None:
    """With all that a step has: accumulation, checkpointing, SCAFFOLD's correction, momentum, clipping."""
    keys = {"accumulation": 3, "activation_checkpointing": True}
    training = {"momentum": 0.9, "clip_norm": 0.5}
    check(update(pools, family, strategy="scaffold", keys=keys, training=training))


def test_one_process_saves_memory_without_changing_the_update(pools: "Callable[[int], Pool]") -> None:
    keys = {"accumulation": 3, "activation_checkpointing": True}
    check(update(pools, "alone", strategy="scaffold", keys=keys))


@pytest.mark.parametrize("family", ["ddp4", "fsdp4"])
@pytest.mark.parametrize("strategy", ["fedprox", "scaffold"])
def test_layers_that_do_not_divide_and_a_parameter_without_use(
    pools: "Callable[[int], Pool]", family: str, strategy: str
) -> None:
    """A layer of 3 rows over 4 ranks leaves one with none; weight decay must not move what has no gradient."""
    check(update(pools, family, task="odd", strategy=strategy, training={"clip_norm": 0.2}))


@pytest.mark.parametrize("family", ["ddp", "fsdp2"])
def test_a_loss_over_tokens_is_weighed_by_what_the_task_counts(pools: "Callable[[int], Pool]", family: str) -> None:
    """Padding is not spread evenly over the rows: weighed by rows the update would be another."""
    check(update(pools, family, task="padded", keys={"accumulation": 2}))


@pytest.mark.parametrize("family", ["ddp", "fsdp2"])
def test_an_update_of_adapters_is_that_of_one_process(pools: "Callable[[int], Pool]", family: str) -> None:
    keys = {"accumulation": 2, "activation_checkpointing": True}
    check(update(pools, family, task="adapted", strategy="scaffold", keys=keys, training={"clip_norm": 0.5}))


@pytest.mark.long
@pytest.mark.parametrize("family", [*FAMILIES, *WIDE])
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rows", [3, 16, 23])
def test_the_grid(
    pools: "Callable[[int], Pool]", family: str, strategy: str, accumulation: int, checkpointing: bool, rows: int
) -> None:
    """3 rows over 4 ranks: one has none, and still goes along."""
    keys = {"accumulation": accumulation, "activation_checkpointing": checkpointing}
    for task in ("words",) if "tp" in family else ("words", "odd"):
        for training in ({}, {"momentum": 0.9, "clip_norm": 0.3}):
            given = {"task": task, "strategy": strategy, "rows": rows, "keys": keys, "training": training}
            check(update(pools, family, **given))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_blocks_give_the_same(pools: "Callable[[int], Pool]", family: str) -> None:
    check(update(pools, family, keys={"compile": True, "activation_checkpointing": "tp" not in family}))
