"""What is saved around a small model's step changes no bit."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from clients.batches import BLOCK, Batches
from clients.config import TrainingTable
from clients.plainsgd import PlainSgd, optimizer_of
from hansa.layout import Layout
from hansa.seeds import torch_generator
from hansa.task import Task, collate

RUN = """
import sys

import torch

import hansa


class Small(hansa.Task):
    def model(self):
        return torch.nn.Linear(2, 1)

    def train_data(self, site):
        return torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8))

    def test_data(self, site):
        return None


hansa.simulate(Small(), sites=2, rounds=1)
print("torch._dynamo" in sys.modules)
"""


class Own(Task):
    def optimizer(self, params: Any, hyper: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1, nesterov=True, momentum=0.9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_it_takes_torch_s_steps_bit_for_bit(momentum: float, decay: float) -> None:
    """A parameter without a gradient stays, and one that gets its first late begins its momentum then."""
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    two = copy.deepcopy(one)
    hyper = TrainingTable(lr=0.1, momentum=momentum, weight_decay=decay).hyper(1)
    plain = optimizer_of(Task(), list(one.parameters()), hyper, kept=False)
    torchs = Task().optimizer(list(two.parameters()), hyper)
    assert isinstance(plain, PlainSgd)
    for number in range(6):
        x = torch.randn(4, 7)
        for model, optimizer in ((one, plain), (two, torchs)):
            model.zero_grad()
            model(x).square().mean().backward()
            if number < 2:
                model[0].bias.grad = None
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("task", [Own(), Task()])
def test_another_optimiser_stays_what_it_is(task: Task) -> None:
    hyper = TrainingTable(lr=0.1, optimizer="sgd" if isinstance(task, Own) else "adam").hyper(1)
    made = optimizer_of(task, [nn.Parameter(torch.zeros(1))], hyper, kept=False)
    assert type(made) is type(task.optimizer([nn.Parameter(torch.zeros(1))], hyper))


def test_a_simulation_with_plain_sgd_does_not_import_torch_s_compiler() -> None:
    """It is not needed, and is most of what a small run takes to start."""
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.integers(1, 90), st.integers(0, 5))
def test_batches_gathered_in_blocks_are_those_collated_one_by_one(
    rows: int, size: int, drop_last: bool, steps: int, done: int
) -> None:
    data = TensorDataset(torch.arange(float(rows)), torch.arange(rows))
    hyper = {"batch_size": size, "drop_last": drop_last, "steps": steps}
    batches = Batches(Task(), data, hyper, (0, 1, "a"), torch.device("cpu"))
    got = list(batches.after(min(done, steps)))
    order = batches._epochs(torch_generator(0, 1, "a", "batches", 1))
    every = [one for _ in range(steps) for one in next(order)][min(done, steps) : steps]
    assert len(got) == len(every)
    assert all(
        torch.equal(a, b)
        for one, ids in zip(got, every, strict=True)
        for a, b in zip(one, collate(data, ids), strict=True)
    )


def test_rows_wider_than_a_block_come_a_batch_at_a_time() -> None:
    data = TensorDataset(torch.zeros(3, BLOCK // 4 + 1))
    hyper = {"batch_size": 1, "drop_last": False, "epochs": 1}
    (first,) = next(iter(Batches(Task(), data, hyper, (0, 1, "a"), torch.device("cpu"))))
    assert first.untyped_storage().nbytes() == first.nbytes


def test_a_module_whose_tensors_were_exchanged_is_read_as_it_is_now() -> None:
    """A layer, a parameter, and a parameter within a layer put in after a first reading."""
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
    layout = Layout.of(model)
    layout.read(model)
    model[0] = nn.Linear(2, 2)
    assert torch.equal(layout.read(model)[:4], model[0].weight.flatten())
    model[0].weight = nn.Parameter(torch.ones(2, 2))
    assert layout.read(model)[:4].tolist() == [1.0] * 4
    model[1][0].bias = nn.Parameter(torch.tensor([7.0]))
    assert layout.read(model)[-1] == 7.0
    layout.write(torch.zeros(layout.size), model)
    assert not any(p.any() for p in model.parameters())
