"""Clipping bounds what a unit adds, however small or large its gradient is: from denormal float32 to the largest."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clients import layers
from clients.dpsgd import clipping
from clients.gradients import Made, squares
from hansa.errors import UserError
from privacy.dp.config import DpTable
from tests.clients.test_dpsgd import Site, Sorting


def dense(g: Tensor, a: Tensor) -> layers.Part:
    return layers.Outer(g[:, 0], a[:, 0])


def fleeting(g: Tensor, a: Tensor) -> layers.Part:
    return layers.Fleeting(g, a, layers._outer, layers._outer_sum, g.shape[2] * a.shape[2])


def lookup(g: Tensor, a: Tensor) -> layers.Part:
    tokens = torch.arange(g.shape[1]).remainder(2).expand(len(g), -1)
    return layers.Lookup(g, tokens, torch.arange(len(g)), len(g), torch.Size((3, g.shape[2])))


PARTS: dict[str, Callable[[Tensor, Tensor], layers.Part]] = {
    "Made": lambda g, a: Made(g),
    "Outer": dense,
    "Fleeting": fleeting,
    "Lookup": lookup,
}
DECADES = st.floats(-45, 38)


def sized(seed: int, decade: float, *shape: int) -> Tensor:
    """Numbers of both signs up to 10^decade."""
    part = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.tensor(10.0**decade, dtype=torch.float64).mul(part).float()


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(list(PARTS)), DECADES, DECADES, st.floats(-10, 30), st.integers(0, 10**6))
@example("Outer", -8.0, 38.0, -10.0, 0)
@example("Outer", 30.0, -30.0, -10.0, 1)
@example("Fleeting", 0.0, 36.0, 0.0, 1)
@example("Made", -24.0, 0.0, -10.0, 2)
def test_a_clipped_gradient_is_within_the_clip(name: str, g: float, a: float, clip: float, seed: int) -> None:
    part = PARTS[name](sized(seed, g, 2, 4, 5), sized(seed + 1, a, 2, 4, 6))
    scales = clipping(part.squares(), 10.0**clip)
    for unit in range(2):
        alone = torch.zeros_like(scales)
        alone[unit] = scales[unit]
        added = part.weighted(alone).double().norm()
        assert float(added) <= 10.0**clip * (1 + 1e-6)


@settings(max_examples=200, deadline=None)
@given(DECADES, st.integers(1, 3000), st.integers(0, 10**6))
def test_norms_are_right_at_every_size(decade: float, n: int, seed: int) -> None:
    units = sized(seed, decade, 3, n)
    units[1] *= 1e-3
    assert squares(units).sqrt() == pytest.approx(units.double().norm(dim=1), rel=1e-6, abs=0)


def test_norms_of_many_floats_are_right() -> None:
    """Float32 that adds up ten million equal squares is wrong by a hundredth."""
    assert float(squares(torch.full((1, 10**7), 0.1)).sqrt()) == pytest.approx(0.1 * 10**3.5, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_left_out(bad: float) -> None:
    found = squares(torch.tensor([[bad, 1.0], [1.0, 2.0]]))
    assert clipping(found, 1.0).tolist() == pytest.approx([0.0, 5**-0.5], rel=1e-5)


@pytest.mark.parametrize("part", [fleeting, lookup])
def test_places_that_cancel_leave_no_more_than_the_clip(part: Callable[..., Any]) -> None:
    """Their sum with those of other rows is rounded otherwise than it was for the norm."""
    g = torch.zeros(3, 4, 1)
    g[0], g[1], g[2] = torch.tensor([[1e9], [0.0], [-1e9], [0.0]]), 0.1, 0.1
    both = part(g, torch.ones(3, 4, 1))
    scales = clipping(both.squares(), 1.0)
    more = both.weighted(scales) - both.weighted(scales * torch.tensor([0.0, 1.0, 1.0]))
    assert float(more.double().norm()) <= 1.0


@pytest.mark.parametrize("clip", [1e-10, 1e-25])
def test_tiny_gradients_are_clipped_as_others_are(clip: float) -> None:
    """Of logits as sure as e^54 each is about 3e-24 of the inputs."""
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([54.0, 0.0]))
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    site = Site(Sorting(layer), TensorDataset(inputs, torch.zeros(50, dtype=torch.long)), clip=clip)
    assert float(site.train().sum.norm()) <= 50 * clip * (1 + 1e-5)


@pytest.mark.parametrize("clip", [1e-30, 9e-11])
def test_a_clip_that_float32_cannot_hold_is_refused(clip: float) -> None:
    with pytest.raises((UserError, ValueError), match="clip"):
        DpTable(unit="record", epsilon=1.0, delta=1e-5, clip=clip)
