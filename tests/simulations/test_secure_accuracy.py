"""What secure aggregation costs in accuracy, as `benchmarks/secure_accuracy.py` has it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from simulations.tune import WORSE


def benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "secure_accuracy.py"
    spec = importlib.util.spec_from_file_location("secure_accuracy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param("heart", 254, marks=pytest.mark.data),
        pytest.param("cnn", 5000, marks=pytest.mark.long),
        pytest.param("cnn-scaffold", 5000, marks=pytest.mark.long),
    ],
)
def test_no_width_costs_more_than_tune_lets_pass(name: str, rows: int) -> None:
    """0.2 points, or one test row, as the mean over three seeds."""
    one = benchmark()
    _, plain, by_width = one.compared(one.FEDERATIONS[name](), 3)
    worst = {bits: one.mean(plain) - one.mean(many) for bits, many in by_width.items()}
    assert max(worst.values()) <= max(WORSE, 100 / rows), worst
