"""The parts of the engine "batched", in float64, each held against torch or against what one site does alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clients.batches import Batches
from hansa.task import Task
from simulations.cohort.chain import Chain, kept, sgd
from simulations.cohort.hooks import clip
from simulations.cohort.losses import binary_cross_entropy, cross_entropy, loss_for, squared_error
from simulations.cohort.optimizers import ELEMENTWISE, shrink, stack_on
from simulations.cohort.unfit import Unfit

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
SITES, ROWS = 3, [5, 5, 2]  # of a batch of at most five


def model(outputs: int) -> nn.Sequential:
    first = [nn.Flatten(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 5)]
    return nn.Sequential(
        *first, nn.GELU(), nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, outputs)
    )


def cases() -> list[Any]:
    logits = lambda z, y: F.binary_cross_entropy_with_logits(z.reshape(-1), y.reshape(-1))  # noqa: E731
    return [
        pytest.param(3, torch.randint(0, 3, (SITES, 5)), cross_entropy, F.cross_entropy, id="cross-entropy"),
        pytest.param(1, torch.randint(0, 2, (SITES, 5)).double(), binary_cross_entropy, logits, id="one logit"),
        pytest.param(2, torch.randn(SITES, 5, 2).double(), squared_error, F.mse_loss, id="squared error"),
    ]


@pytest.mark.parametrize(("outputs", "target", "loss", "expected"), cases())
def test_gradients_by_hand_are_autograd_s(
    outputs: int, target: Tensor, loss: Any, expected: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """With padding in the last site's batch; and plain SGD within the product is a step of torch's."""
    nets = [model(outputs).double() for _ in range(SITES)]
    x = torch.randn(SITES, 5, 2, 3).double()
    params = {
        name: torch.stack([net.get_parameter(name).detach() for net in nets]) for name, _ in nets[0].named_parameters()
    }
    weight = torch.stack([(torch.arange(5) < rows).double() / rows for rows in ROWS])
    chain = Chain.of(Task(), nets[0])
    assert chain is not None
    grads: dict[str, Tensor] = {}
    losses = chain.step(params, x, lambda z: loss(z, target, weight), kept(grads))
    chain.step(params, x, lambda z: loss(z, target, weight), sgd(params, 0.1))
    for k, (net, rows) in enumerate(zip(nets, ROWS, strict=True)):
        alone = expected(net(x[k, :rows]), target[k, :rows])
        torch.testing.assert_close(losses[k], alone.detach(), **EXACT)
        alone.backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        for name, p in net.named_parameters():
            torch.testing.assert_close(grads[name][k], p.grad, **EXACT)
            torch.testing.assert_close(params[name][k], p.detach(), **EXACT)


def test_which_loss_is_taken_is_as_in_the_task() -> None:
    """Probabilities and classes to be left out are not here."""
    classes = torch.zeros(1, 1, 4, dtype=torch.int64)
    assert loss_for("classification", 3, classes) is cross_entropy
    assert loss_for("classification", 1, classes) is binary_cross_entropy
    assert loss_for("regression", 1, classes.float()) is squared_error
    assert loss_for("classification", 3, classes - 100) is None
    assert loss_for("classification", 3, torch.rand(1, 1, 4, 3)) is binary_cross_entropy  # as many as there are logits
    assert loss_for("regression", 2, torch.rand(1, 1, 4)) is None


class OwnForward(Task):
    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        return model(batch[0]), batch[1]


def test_what_is_no_chain_is_not_lowered() -> None:
    twice = nn.Linear(4, 4)
    frozen = nn.Linear(4, 4).requires_grad_(False)
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, args, output: 2 * output)
    for net in (
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        nn.Sequential(nn.GELU(approximate="tanh"), nn.Linear(4, 4)),
        nn.Sequential(twice, twice),
        nn.Sequential(frozen, nn.Linear(4, 4)),
        hooked,
    ):
        assert Chain.of(Task(), net) is None
    assert Chain.of(OwnForward(), nn.Linear(4, 4)) is None
    assert Chain.of(Task(), nn.Linear(4, 4)) is not None


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_an_optimiser_on_a_stack_moves_each_site_as_it_would_alone(kind: Any) -> None:
    """One site has fewer steps, and is left where it was: element by element, a stack is as good as a tensor."""
    facts: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
    if kind in (torch.optim.SGD, torch.optim.RMSprop):
        facts["momentum"] = 0.9
    if kind is torch.optim.SGD:
        facts["nesterov"] = True
    steps = [4, 4, 2]
    start, grads = torch.randn(SITES, 3, 2).double(), torch.randn(4, SITES, 3, 2).double()
    one = nn.Parameter(start[0].clone())
    optimizer = kind([one], **facts)
    whole = {"w": start.clone()}
    stack_on(optimizer, {"w": one}, whole)
    params = whole
    for s in range(4):
        active = sum(s < number for number in steps)
        if active < len(params["w"]):
            params = shrink(optimizer, params, active)
        params["w"].grad = grads[s, :active]
        optimizer.step()
    for k, number in enumerate(steps):
        alone = nn.Parameter(start[k].clone())
        by = kind([alone], **facts)
        for s in range(number):
            alone.grad = grads[s, k]
            by.step()
        torch.testing.assert_close(whole["w"][k], alone.detach(), **EXACT)


def test_an_optimiser_that_looks_across_elements_is_not_stacked() -> None:
    p = nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(Unfit, match="Adafactor is not known to work element by element"):
        stack_on(torch.optim.Adafactor([p]), {"p": p}, {"p": torch.zeros(2, 3, 2)})


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=2), st.floats(0.1, 10))
def test_each_site_s_gradient_is_clipped_as_torch_clips_one(scales: list[float], bound: float) -> None:
    shapes = [(2, 3), (4,), ()]
    generator = torch.Generator().manual_seed(0)
    grads = {
        str(i): torch.stack([scale * torch.randn(shape, generator=generator, dtype=torch.float64) for scale in scales])
        for i, shape in enumerate(shapes)
    }
    alone = [[nn.Parameter(torch.zeros(shape).double()) for shape in shapes] for _ in scales]
    for k, parameters in enumerate(alone):
        for p, g in zip(parameters, grads.values(), strict=True):
            p.grad = g[k].clone()
        nn.utils.clip_grad_norm_(parameters, bound)
    clip(grads, bound)
    for k, parameters in enumerate(alone):
        for p, g in zip(parameters, grads.values(), strict=True):
            torch.testing.assert_close(g[k], p.grad, **EXACT)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3), st.booleans(), st.booleans())
def test_rows_by_number_are_those_of_the_batches(n: int, size: int, work: int, by_steps: bool, drop: bool) -> None:
    hyper = {"batch_size": size, "drop_last": drop, ("steps" if by_steps else "epochs"): work}
    rows = TensorDataset(torch.arange(n))
    one, two = (Batches(Task(), rows, hyper, (7, 1, "site"), torch.device("cpu")) for _ in range(2))
    numbers, counts = one.table()
    found = [line[:count].tolist() for line, count in zip(numbers, counts.tolist(), strict=True)]
    assert found == [batch[0].tolist() for batch in two]
