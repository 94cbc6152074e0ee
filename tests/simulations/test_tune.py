"""`hansa tune clip`: bounds by which nothing that matters is cut, held against the unmasked run, written in place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from hansa.cli import main
from hansa.config import load
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import Broadcast, Plan, Reply
from privacy.config import PrivacyTable
from simulations.configured import federation_of
from simulations.magnitudes import Magnitudes, rounded_up
from simulations.starter.write import init
from simulations.tune import as_toml, check_width, measured, written

LAYOUT = Layout.of(nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100)))  # 10,300 parameters, 200 in buffers
ROWS = 81  # of each made-up site that train: of 120, a quarter tests, and of the others a tenth validates
PLAN = Plan("run", 0, 1, "train", "valid", Broadcast(torch.zeros(1), torch.zeros(0)), {})


def seen(*vectors: torch.Tensor, examples: int = 1) -> Magnitudes:
    one = Magnitudes(LAYOUT)
    for vector in vectors:
        one.watch(PLAN, Reply("a", examples, {"delta": vector}))
    return one


def test_few_large_values_of_one_tensor_are_not_cut() -> None:
    """BatchNorm's 100 running variances change by 30, 10,400 other values by 0.01: of all, 99.99% is 30 or more here,
    and 99% is 0.01; by tensor, 30 is the answer at any quantile."""
    vector = torch.full((LAYOUT.size,), 0.01)
    variances = next(entry for entry in LAYOUT.floats if entry.name == "1.running_var")
    variances.of(vector)[:] = 30.0
    assert 30 <= seen(vector).bounds(0.9, 1.0)["delta"] <= 33


@given(arrays(np.float32, (7,), elements=st.floats(0, 1e6, width=32)), st.sampled_from([0.5, 0.9, 0.9999]))
def test_the_bound_is_the_quantile_up_to_a_bin_and_two_digits(values: np.ndarray, quantile: float) -> None:
    """A vector of another length than the model's is one tensor. A bin is 1/16 of a power of two; digits add 10%."""
    bound = seen(torch.from_numpy(values)).bounds(quantile, 1.0)["delta"]
    true = float(np.quantile(values.astype(np.float64), quantile, method="inverted_cdf"))
    if values.max() < 1e-37:
        assert bound == 1.0 or bound < 1e-36
    elif true >= 1e-37:
        assert true <= bound <= true * 1.0625 * 1.1 * (1 + 1e-6)


@pytest.mark.parametrize(("value", "up"), [(0.123, 0.13), (0.12, 0.12), (9.99, 10.0), (1234.0, 1300.0), (1e-20, 1e-20)])
def test_bounds_are_rounded_up_to_two_digits(value: float, up: float) -> None:
    assert rounded_up(value) == pytest.approx(up, rel=1e-12)


def test_what_is_not_finite_does_not_count_and_the_largest_site_s_rows_do() -> None:
    one = seen(torch.tensor([1.0, float("nan"), float("inf")]), examples=3)
    one.watch(PLAN, Reply("b", 7, {"delta": torch.tensor([1.0])}))
    one.watch(replace(PLAN, kind="evaluate"), Reply("b", 900, {}))
    assert one.rows == 7
    assert 1.0 <= one.bounds(0.9999, 1.0)["delta"] <= 1.2


def test_a_part_that_is_always_zero_gets_a_bound_all_the_same() -> None:
    assert seen(torch.zeros(5)).bounds(0.9999, 2.0) == {"delta": 1.0}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    init(tmp_path / "app", None, None, None, lambda line: None)
    return tmp_path / "app"


def test_a_strategy_s_parts_each_get_their_bound(app: Path) -> None:
    federation = federation_of(load(app / "federation.toml", ["strategy.name=scaffold", "rounds.rounds=1"]))
    _, found = measured(federation, 1)
    assert isinstance(found["clip"], dict)
    assert found["clip"].keys() == {"delta", "control"}
    assert found["max_weight"] == ROWS


def test_it_prints_and_writes_a_table_that_runs_and_leaves_the_rest(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = app / "federation.toml"
    before = path.read_text().partition("[privacy]")[0].rstrip()
    path.write_text(f"{before}\n")
    assert main(["tune", "clip", str(app), "--rounds", "2", "--write"]) == 0
    said = capsys.readouterr().out
    assert "in a ring of 32 bits" in said
    after = path.read_text()
    assert after.startswith(before)
    table = load(path)["privacy"]
    assert as_toml(table) in after
    assert as_toml(table) in said
    assert 0 < table.clip < 10
    assert table.max_weight == ROWS
    written(path, table.model_copy(update={"clip": {"delta": 0.25}}))
    assert load(path)["privacy"].clip == {"delta": 0.25}
    assert path.read_text().count("[privacy]") == 1


def test_a_ring_that_is_too_coarse_is_refused_with_the_figures(app: Path) -> None:
    """A bound of 10,000 leaves steps of 10,000 / (42 * 255): as large as the weights themselves."""
    federation = federation_of(load(app / "federation.toml", ["rounds.rounds=5", "privacy.secure=false"]))
    plain, _ = measured(federation, 2)
    coarse = PrivacyTable(clip=1e4, max_weight=ROWS, ring_bits=16)
    with pytest.raises(UserError, match=r"accuracy .* points worse; try --bits 20"):
        check_width(federation, coarse, plain, print)


def test_another_width_is_one_line(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "clip", str(app), "--bits", "17"]) == 2
    assert capsys.readouterr().err == "error: --bits is one of 16, 20, 24, 32, and --rounds 1 or more\n"
