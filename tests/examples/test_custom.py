"""The strategy and the data set that live in one file of their own."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hansa
from hansa.config import load
from hansa.records import ServerState
from hansa.taskfile import load_class
from simulations.configured import federation_of

EXAMPLES = Path(__file__).parents[2] / "examples"
Chosen = Callable[..., Any]

FEDERATION = """
federation = {name = "custom", task = "custom_dataset.py:Cultivar"}
rounds = {rounds = 2}
strategy = {name = "custom_strategy.py:FedAvgM", beta = 0.5}

[simulation]
dataset = {name = "custom_dataset.py:Wine", test = 0.3}
partition = {name = "iid", sites = 4}
"""


class Normed(hansa.Task):
    """A BatchNorm layer has parameters, float buffers and a counter."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def train_data(self, site: hansa.Site) -> TensorDataset:
        x = torch.randn(32, 3, generator=torch.Generator().manual_seed(int(site.name[-1])))
        return TensorDataset(x, (x[:, 0] > 0).long())

    def valid_data(self, site: hansa.Site) -> None:
        return None

    def test_data(self, site: hansa.Site) -> None:
        return None


def test_beta_zero_equals_fedavg_bit_for_bit(chosen: Chosen) -> None:
    """V = 0 * v + delta = delta."""

    def params(strategy: hansa.Strategy | None) -> torch.Tensor:
        work = {"batch_size": 8, "lr": 0.1}
        return hansa.simulate(Normed(), strategy=strategy, sites=3, training=work, rounds=4).state.params

    assert torch.equal(params(chosen("custom_strategy.py:FedAvgM", beta=0.0)), params(None))
    assert not torch.allclose(params(chosen("custom_strategy.py:FedAvgM", beta=0.5)), params(None))


def test_two_steps_of_momentum_by_hand(chosen: Chosen) -> None:
    """Parameters (2): v = 4, then 0.5 * 4 + 1 = 3; x = 1 + 4, then + 3. A buffer (1) takes the means as they are."""
    strategy = chosen("custom_strategy.py:FedAvgM", beta=0.5)
    state: ServerState = strategy.start(torch.tensor([1.0, -1, 7]), torch.tensor([5]), 2)
    for delta in ([4.0, -4, 1], [1.0, 0, 2]):
        state = strategy.step(state, {"delta": torch.tensor(delta)}, 1.0)
    assert state.params.tolist() == [1 + 4 + 3, -1 - 4 - 2, 7 + 1 + 2]
    assert state.own["velocity"].tolist() == [3, -2]
    assert not strategy.broadcast(state).shared


def test_wines_are_scored_by_their_training_rows() -> None:
    """178 rows of 13 columns; z-scores of the training rows have mean 0 and unbiased variance 1, up to float32."""
    wine: Any = load_class("custom_dataset.py:Wine", EXAMPLES, object, "data set")
    train, test = (wine().pooled().split(name) for name in ("train", "test"))
    assert (len(train), len(test)) == (133, 45)
    assert isinstance(train, TensorDataset)
    torch.testing.assert_close(train.tensors[0].mean(0), torch.zeros(13), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.tensors[0].var(0), torch.ones(13), atol=1e-5, rtol=0)


def test_a_config_finds_both_beside_it(tmp_path: Path) -> None:
    for name in ("custom_dataset.py", "custom_strategy.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "federation.toml").write_text(FEDERATION)
    federation = federation_of(load(tmp_path / "federation.toml"))
    assert type(federation.strategy).__name__ == "FedAvgM"
    history = federation.run(tmp_path / "runs", "one")
    assert set(history.test) == {"site-01", "site-02", "site-03", "site-04"}
    assert sum(int(sums["accuracy"][1]) for sums in history.test.values()) == 54  # 0.3 * 178, rounded up


@pytest.mark.parametrize(
    ("name", "rounds", "said"),
    [("custom_strategy.py:FedAvgM", [2], "round    FedAvg   FedAvgM"), ("custom_dataset.py:Wine", [], "accuracy")],
)
def test_an_example_runs_by_itself(name: str, rounds: list[int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = load_class(name, EXAMPLES, object, "example")
    vars(sys.modules[found.__module__])["main"](*rounds)
    assert said in capsys.readouterr().out
