"""Coins and noise: the distributions that accountants assume, from a key."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.dp.randomness import COINS, NORMAL, Stream
from privacy.secagg.keys import derive

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
MANY = 400_000


def noise(key: bytes = KEY, n: int = MANY, std: float = 1.0) -> np.ndarray:
    out = np.zeros(n)
    Stream(key).normal(out, std)
    return out


def words(label: bytes, n: int) -> np.ndarray:
    """The keystream by another way: AES-256-CTR over zeros, from the key that HKDF gives for the label."""
    encryptor = Cipher(algorithms.AES(derive(KEY, b"", label, 32)), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * n)), "<u8")


@pytest.mark.parametrize("key", [KEY, OTHER, bytes(32)])
def test_noise_is_standard_normal(key: bytes) -> None:
    """Kolmogorov-Smirnov, and the first four moments within 4.5 standard errors (1, sqrt 2, sqrt 15, sqrt 96)."""
    z = noise(key)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    for moment, (expected, error) in enumerate([(0, 1), (1, 2**0.5), (0, 15**0.5), (3, 96**0.5)], 1):
        assert abs((z**moment).mean() - expected) < 4.5 * error / MANY**0.5


def test_tails_are_there() -> None:
    """Of 400,000 normals 25.3 lie beyond 4: the number is Poisson, within 4.5 standard deviations."""
    expected = MANY * 2 * stats.norm.sf(4)
    assert abs((abs(noise()) > 4).sum() - expected) < 4.5 * expected**0.5


def test_coordinates_are_independent() -> None:
    """Of values and of squares: neighbours, and the two of one pair of Box and Muller (8192 apart)."""
    z = noise()
    for values in (z, z**2, abs(z)):
        for lag in (1, 2, 4096, 8192, 16384):
            assert abs(np.corrcoef(values[lag:], values[:-lag])[0, 1]) < 4.5 / MANY**0.5


def test_noise_is_box_muller_over_the_keystream() -> None:
    """Two normals from two words of 53 bits, computed here with the standard library's functions."""
    first, second = ((int(word) >> 11) + 0.5 for word in words(NORMAL, 2))
    radius = (-2 * np.log(first / 2**53)) ** 0.5
    angle = 2 * np.pi * second / 2**53
    assert noise(n=2) == pytest.approx([radius * np.cos(angle), radius * np.sin(angle)], rel=1e-12)


def test_variance_follows_the_standard_deviation() -> None:
    z = noise(std=0.125)
    assert np.array_equal(z, noise() * 0.125)


def test_one_key_gives_the_same_bits_and_another_key_others() -> None:
    assert np.array_equal(noise(), noise())
    assert abs(np.corrcoef(noise(), noise(OTHER))[0, 1]) < 4.5 / MANY**0.5


def test_noise_that_was_given_out_does_not_come_again() -> None:
    stream = Stream(KEY)
    first, second = np.zeros(MANY), np.zeros(MANY)
    stream.normal(first, 1.0)
    stream.normal(second, 1.0)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / MANY**0.5


def test_coins_seeds_and_noise_do_not_move_one_another() -> None:
    stream = Stream(KEY)
    coins, seed = stream.coins(0.5, 100), stream.seed()
    out = np.zeros(MANY)
    stream.normal(out, 1.0)
    assert np.array_equal(out, noise())
    assert np.array_equal(Stream(KEY).coins(0.5, 100), coins)
    assert Stream(KEY).seed() == seed


def test_only_the_sum_is_rounded() -> None:
    """Each sum is the float32 nearest to what it is in float64; noise that was rounded before gives others."""
    start, out = torch.ones(MANY), torch.ones(MANY)
    Stream(KEY).normal(out, 1.0)
    assert torch.equal(out, (start.double() + torch.from_numpy(noise())).float())
    assert not torch.equal(out, start + torch.from_numpy(noise()).float())


def test_noise_goes_on_top_in_any_shape() -> None:
    out = torch.ones(7, 11, 3)
    Stream(KEY).normal(out, 2.0)
    assert torch.equal(out.view(-1), torch.from_numpy(1 + 2 * noise(n=231)).float())


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 0.99])
def test_coins_fall_with_their_chance(rate: float) -> None:
    """Counts over 400 throws of 1000 against the binomial distribution: chi-square over cells that expect 5 or more."""
    stream = Stream(KEY)
    counts = np.array([stream.coins(rate, 1000).sum() for _ in range(400)])
    edges = np.unique(stats.binom.ppf(np.linspace(0.1, 0.9, 9), 1000, rate))
    seen = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    expected = 400 * np.diff(np.concatenate([[0], stats.binom.cdf(edges, 1000, rate), [1]]))
    assert expected.min() >= 5
    assert stats.chisquare(seen, expected).pvalue > 1e-3


@given(st.floats(0, 1))
def test_a_coin_is_a_word_below_its_chance_exactly(rate: float) -> None:
    """By whole numbers in Python, without a float's rounding; 1 is always, 0 never."""
    numerator, denominator = rate.as_integer_ratio()
    limit = (numerator << 64) // denominator
    assert Stream(KEY).coins(rate, 64).tolist() == [int(word) < limit for word in words(COINS, 64)]


@pytest.mark.parametrize("std", [float("nan"), float("inf"), -1.0])
def test_a_standard_deviation_that_is_none_adds_nothing(std: float) -> None:
    out = np.zeros(3)
    with pytest.raises(ValueError, match="standard deviation"):
        Stream(KEY).normal(out, std)
    assert not out.any()


def test_what_cannot_take_noise_is_not_passed_over() -> None:
    """A copy of it would, and the original would stay bare."""
    for out in (torch.zeros(4, dtype=torch.float16), torch.zeros(4, 4).T, torch.zeros(8)[::2], torch.zeros(4).int()):
        with pytest.raises(ValueError, match="float32 or float64"):
            Stream(KEY).normal(out, 1.0)
    with pytest.raises(ValueError, match="32 bytes"):
        Stream(bytes(16))
    with pytest.raises(ValueError, match="chance"):
        Stream(KEY).coins(1.5, 3)
