"""Every draw has a seed of its own."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.seeds import derive, seeded, torch_generator

PURPOSE = st.lists(st.one_of(st.integers(0, 99), st.text(max_size=4)), max_size=4)


@given(PURPOSE, PURPOSE, st.integers(0, 5), st.integers(0, 5))
def test_two_purposes_share_a_seed_only_if_they_are_one(a: list[int | str], b: list[int | str], s: int, t: int) -> None:
    assert (derive(s, *a) == derive(t, *b)) == ((s, a) == (t, b))
    assert 0 <= derive(s, *a) < 2**63


def test_a_number_is_not_its_text() -> None:
    assert derive(0, 1, "2") != derive(0, "1", 2) != derive(0, "12")


def test_seeded_puts_the_global_generators_back() -> None:
    def draws() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = draws()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with seeded(5, "x"):
        inside = draws()
    assert draws() == expected
    with seeded(5, "x"):
        assert draws() == inside


def test_a_generator_does_not_depend_on_what_was_drawn_before() -> None:
    torch.rand(3)
    assert torch.equal(
        torch.rand(4, generator=torch_generator(3, "a")), torch.rand(4, generator=torch_generator(3, "a"))
    )
