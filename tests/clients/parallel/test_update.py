"""The site's update does not depend on how many processes computed it, nor on how the model lies in them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.clients.parallel.conftest import Pool

FLOAT64, LAYOUT, FLOAT32 = 1e-12, 1e-6, 1e-5
FAMILIES = {
    "ddp": (2, {"dp": 2}),
    "fsdp2": (2, {"shard": 2}),
    "tp": (2, {"tp": 2}),
    "fsdp2-tp": (4, {"shard": 2, "tp": 2}),
}
WIDE = {"ddp4": (4, {"dp": 4}), "fsdp4": (4, {"shard": 4})}


def check(found: dict[str, Any]) -> None:
    assert found["moved"] > 0.05
    assert found["float64"] <= FLOAT64
    assert found["layout"] <= LAYOUT
    assert found["float32"] <= FLOAT32
    assert found["loss"] <= FLOAT32
    assert found["same"] == [True, True, True]


def update(pools: "Callable[[int], Pool]", family: str, **given: Any) -> dict[str, Any]:
    """23 rows in batches of 8: the last has 7, which is cut into 4 and 3, or 2, 2, 2 and 1."""
    world, degrees = {**FAMILIES, **WIDE}[family]
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
