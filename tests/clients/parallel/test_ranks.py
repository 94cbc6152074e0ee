"""What else must hold among ranks: vectors, random numbers, privacy, a site's whole answer, and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hansa.errors import UserError

if TYPE_CHECKING:
    from tests.clients.parallel.conftest import Pool

SPREAD = [(2, {"dp": 2}), (2, {"shard": 2}), (2, {"tp": 2}), (4, {"shard": 2, "tp": 2}), (4, {"shard": 4})]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("world", "degrees"), SPREAD)
def test_a_vector_comes_back_bit_for_bit(
    pools: "Callable[[int], Pool]", world: int, degrees: dict[str, int], dtype: str
) -> None:
    found = pools(world).ask("round_trip", task="words", keys={"parallel": degrees}, dtype=dtype)
    assert found["same"] == [True, True]
    assert found["held"] == 1 if "dp" in degrees else found["held"] < 0.75


def test_parts_that_do_not_divide_come_back_too(pools: "Callable[[int], Pool]") -> None:
    found = pools(4).ask("round_trip", task="odd", keys={"parallel": {"shard": 4}}, dtype="float32")
    assert found["same"] == [True, True]


@pytest.mark.parametrize(
    ("task", "world", "degrees"),
    [*(("words", *one) for one in SPREAD), ("odd", 4, {"dp": 4}), ("odd", 4, {"shard": 4}), ("odd", 1, {})],
)
def test_an_update_that_ranks_write_into_one_file_is_that_which_rank_0_gathers(
    pools: "Callable[[int], Pool]", tmp_path: Path, task: str, world: int, degrees: dict[str, int]
) -> None:
    found = pools(world).ask("drafted", task=task, keys={"parallel": degrees}, file=str(tmp_path / "draft"))
    assert found == {"same": [True] * 4, "drafts": [True, world == 1]}


@pytest.mark.parametrize(("world", "degrees"), [(2, {"dp": 2}), (4, {"shard": 4})])
def test_random_numbers_differ_by_rank_and_step_and_can_be_repeated(
    pools: "Callable[[int], Pool]", world: int, degrees: dict[str, int]
) -> None:
    found = pools(world).ask("randomness", keys={"parallel": degrees})
    assert found == {"again": True, "steps": False, "ranks": [False] * (world - 1)}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("rate", "units"), [(0.4, None), (1.0, None), (0.5, 7), (0.02, None)])
def test_private_training_is_that_of_one_process(
    pools: "Callable[[int], Pool]", world: int, rate: float, units: int | None
) -> None:
    """The same draws, clipping and noise: what remains is float32 in another order."""
    found = pools(world).ask("private", rate=rate, units=units, noise=0.3)
    assert found["moved"] > 1e-3
    assert found["apart"] <= 3e-8 * max(1.0, found["moved"] / 0.1)
    assert found["ranks"]
    assert found["event"]
    assert found["seen"][0] == found["seen"][1]


def test_private_training_of_adapters_is_that_of_one_process(pools: "Callable[[int], Pool]") -> None:
    found = pools(2).ask("private", rate=0.4, units=None, noise=0.3, task="adapted")
    assert found["moved"] > 1e-3
    assert found["apart"] <= 3e-8 * max(1.0, found["moved"] / 0.1)
    assert found["seen"][0] == found["seen"][1]


@pytest.mark.parametrize("degrees", [{"dp": 2}, {"shard": 2}])
def test_ranks_share_adapters_and_leave_the_base_alone(pools: "Callable[[int], Pool]", degrees: dict[str, int]) -> None:
    """Two layers of two blocks have adapters, of two matrices each; 12 tensors a block and 5 beside them stay."""
    same, hashes, shared = pools(2).ask("untouched", keys={"parallel": degrees})
    assert same
    assert hashes == 29
    layers = [f"layers.{block}.{name}" for block in (0, 1) for name in ("q", "v")]
    assert shared == [f"{layer}.{part}.weight" for layer in layers for part in ("down", "up")]


@pytest.mark.parametrize("degrees", [{"dp": 2}, {"shard": 2}])
def test_a_base_that_was_written_to_is_refused(pools: "Callable[[int], Pool]", degrees: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"parameter 'token.weight' is not shared \(trainable_only\), and was changed"):
        pools(2).ask("meddled", keys={"parallel": degrees})


def test_adapters_of_layers_that_are_cut_are_refused(pools: "Callable[[int], Pool]") -> None:
    with pytest.raises(UserError, match="task Adapted: trainable_only does not go with tensor parallelism; use shard"):
        pools(2).ask("untouched", keys={"parallel": {"tp": 2}})


@pytest.mark.parametrize(("world", "degrees"), [(2, {"dp": 2}), (4, {"shard": 4})])
@pytest.mark.parametrize("strategy", ["fedprox", "scaffold"])
def test_a_site_s_answers_are_those_of_one_process(
    pools: "Callable[[int], Pool]", tmp_path: Path, world: int, degrees: dict[str, int], strategy: str
) -> None:
    """Two rounds, with local layers, memory, validation and test."""
    found = pools(world).ask("site", folder=str(tmp_path), keys={"parallel": degrees}, strategy=strategy, dp=None)
    assert found["shapes"]
    assert len(found["apart"]) > 8
    assert max(found["apart"].values()) <= 1e-5, found["apart"]


@pytest.mark.parametrize("unit", ["record", "site"])
def test_a_site_s_private_answers_are_those_of_one_process(
    pools: "Callable[[int], Pool]", tmp_path: Path, unit: str
) -> None:
    """The ranks' keys differ: rank 0's is taken at all."""
    dp = {"unit": unit, "noise_multiplier": 0.5, "delta": 1e-5, "clip": 0.5, "rounds": 2}
    keys = {"parallel": {"dp": 2}}
    found = pools(2).ask("site", folder=str(tmp_path), keys=keys, strategy="fedavg", dp=dp)
    assert max(v for k, v in found["apart"].items() if k.endswith("delta")) <= 3e-8, found["apart"]
    assert max(found["apart"].values()) <= 1e-5, found["apart"]


def test_single_rows_cannot_be_clipped_on_parts_of_tensors(pools: "Callable[[int], Pool]", tmp_path: Path) -> None:
    dp = {"unit": "record", "noise_multiplier": 0.5, "delta": 1e-5, "clip": 0.5, "rounds": 2}
    asked = {"folder": str(tmp_path), "keys": {"parallel": {"shard": 2}}, "strategy": "fedavg", "dp": dp}
    with pytest.raises(UserError, match=r"need the whole model, .* set parallel = \{ dp = 2 \}"):
        pools(2).ask("site", **asked)


def test_a_small_model_is_not_sharded_and_that_is_said(pools: "Callable[[int], Pool]") -> None:
    degrees, said = pools(2).ask("auto")
    assert degrees == {"dp": 2, "shard": 1, "tp": 1}
    assert "each process holds the whole model (DDP)" in said


REFUSED: list[tuple[str, dict[str, Any], str, dict[str, Any], str]] = [
    ("Unplanned", {"tp": 2}, "fedavg", {}, "no plan for tensor parallelism; define Task.parallel_plan, or use shard"),
    ("Misplanned", {"tp": 2}, "fedavg", {}, "names 'layers.*.gate', and the model has no layer of that name"),
    ("Crooked", {"tp": 2}, "fedavg", {}, "has style 'diagonal'; use colwise"),
    ("Indivisible", {"tp": 2}, "fedavg", {}, "has 17 of what tp = 2 must divide"),
    ("Normed", {"dp": 2}, "fedavg", {}, "BatchNorm1d (1), whose means are of a process's own rows; use torch.nn.Group"),
    ("Remembering", {"dp": 2}, "fedavg", {}, "buffer 'scale' keeps something of the rows that a process sees"),
    ("Tied", {"shard": 2}, "fedavg", {}, "are one tensor, in different blocks; untie them"),
    ("Mixed", {"shard": 2}, "fedavg", {}, "parameters of torch.bfloat16 and torch.float32; to shard it"),
    ("Muddled", {"shard": 2}, "fedavg", {}, "Adafactor, which may need whole tensors; use sgd"),
    ("Odd", {"dp": 2}, "looping", {}, "goes over the batches itself, of which a process has but a part"),
    ("Odd", {"dp": 2}, "copying", {}, "trains a model of its own, which is not spread"),
    ("Odd", {"dp": 2}, "listing", {}, "it makes batches of its own"),
    ("Odd", {"shard": 2}, "ditto", {}, "Ditto: its loss may see parts of tensors only; use dp"),
    ("Odd", {"dp": 2}, "fedavg", {"precision": "float16"}, 'float16 scales its loss.*set precision = "bfloat16"'),
]


def test_compiling_checkpointed_blocks_under_tp_is_refused(pools: "Callable[[int], Pool]") -> None:
    keys = {"parallel": {"tp": 2}, "compile": True, "activation_checkpointing": True}
    with pytest.raises(UserError, match="compile and activation_checkpointing do not go together under tp; leave one"):
        pools(2).ask("refusal", kind="Words", keys=keys, strategy="fedavg", training={})


@pytest.mark.parametrize(("kind", "degrees", "strategy", "training", "says"), REFUSED)
def test_what_cannot_work_is_refused_in_a_line(
    pools: "Callable[[int], Pool]", kind: str, degrees: dict[str, int], strategy: str, training: Any, says: str
) -> None:
    keys = {"parallel": degrees}
    with pytest.raises(UserError) as refused:
        pools(2).ask("refusal", kind=kind, keys=keys, strategy=strategy, training=training)
    first, _, rest = says.partition(".*")
    assert first in str(refused.value)
    assert rest in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ditto_trains_its_personal_model_over_ranks_too(pools: "Callable[[int], Pool]") -> None:
    found = pools(2).ask("refusal", kind="Odd", keys={"parallel": {"dp": 2}}, strategy="ditto", training={})
    assert found == "not refused"
