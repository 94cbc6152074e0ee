"""Randomness of a simulation: every draw has a seed of its own, derived from the run's seed and what the draw is for.

No draw depends on what was drawn before it, so neither the order of sites nor the number of workers changes a bit.
Deployed noise, rounding coins and masks never come from here.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for one purpose, e.g. `derive(7, round, site, "batches")`: SHA-256 of all of it."""
    return int.from_bytes(_digest(seed, *purpose)[:8], "big") >> 1


def coins(seed: int, round: int, site: str) -> bytes:
    """32 bytes from which a simulated site's update of a round is rounded."""
    return key(seed, round, site, "coins")


def key(seed: int, *purpose: str | int) -> bytes:
    """32 bytes for one purpose of a simulation: where a deployed site asks its operating system."""
    return _digest(seed, *purpose)


def torch_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A NumPy generator of its own for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seeds the global generators (torch's for dropout and initialisation, numpy's, Python's) and puts them back."""
    one = derive(seed, *purpose)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    torch_state = torch.default_generator.get_state()
    _seeding()(one)
    np.random.seed(one % 2**32)
    random.seed(one)
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _digest(seed: int, *purpose: str | int) -> bytes:
    return hashlib.sha256(json.dumps([seed, *purpose], separators=(",", ":")).encode()).digest()


@cache
def _seeding() -> Callable[[int], object]:
    """Seeds torch: all devices, or the CPU alone where there is no other, for which torch.manual_seed is slow."""
    return torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
