"""Secret sharing, held against derivations of its own."""

import random
from fractions import Fraction
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.secagg.shamir import PRIME, SIZE, at_zero, is_share, join, split

SECRETS = st.binary(min_size=32, max_size=32)
COUNTS = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def test_the_modulus_is_prime() -> None:
    """Miller-Rabin (Knuth, TAOCP 4.5.4) with forty bases: a composite passes with a chance below 4^-40."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        chain = [pow(base, odd << i, PRIME) for i in range(twos)]
        assert chain[0] == 1 or PRIME - 1 in chain


@given(SECRETS, COUNTS, st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, counts: tuple[int, int], rng: random.Random) -> None:
    n, threshold = counts
    points = rng.sample(range(1, 1025), n)
    shares = dict(zip(points, split(secret, threshold, points, rng.randbytes), strict=True))
    assert join({point: shares[point] for point in rng.sample(points, threshold)}) == secret


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=9, unique=True))
def test_factors_are_lagrange_s_in_rational_numbers(points: list[int]) -> None:
    """At 0 the factor of x_i is the product over j of x_j / (x_j - x_i): reckoned in fractions, then taken mod p."""
    for point, factor in at_zero(tuple(points)).items():
        exact = prod((Fraction(other, other - point) for other in points if other != point), start=Fraction(1))
        assert factor == exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def test_shares_lie_on_a_polynomial_with_the_secret_at_0() -> None:
    """Solves Vandermonde's equations by elimination: another way to the same coefficients."""
    secret, points = bytes(range(32)), [2, 3, 5, 7]
    shares = [int.from_bytes(share) for share in split(secret, 4, points, random.Random(1).randbytes)]
    rows = [[pow(x, power, PRIME) for power in range(4)] + [y] for x, y in zip(points, shares, strict=True)]
    for i in range(4):
        inverse = pow(rows[i][i], -1, PRIME)
        rows[i] = [value * inverse % PRIME for value in rows[i]]
        for j in range(4):
            if j != i:
                rows[j] = [(a - rows[j][i] * b) % PRIME for a, b in zip(rows[j], rows[i], strict=True)]
    assert rows[0][4] == int.from_bytes(secret)


@given(SECRETS, SECRETS, st.randoms(use_true_random=False))
def test_one_share_too_few_fits_every_other_secret(secret: bytes, other: bytes, rng: random.Random) -> None:
    """Two of three shares, with any secret at 0, are on one polynomial of degree 2: so they say nothing of it."""
    (a, b, _) = split(secret, 3, [1, 2, 3], rng.randbytes)
    y0, y1, y2 = (int.from_bytes(value) for value in (other, a, b))
    y3 = (y0 - 3 * y1 + 3 * y2) % PRIME  # third differences of a parabola are 0
    assert join({1: a, 2: b, 3: y3.to_bytes(SIZE)}) == other


def test_only_the_least_form_of_an_element_is_a_share() -> None:
    assert is_share((PRIME - 1).to_bytes(SIZE))
    assert not is_share(PRIME.to_bytes(SIZE))
    assert not is_share(bytes(SIZE - 1))


def test_shares_of_no_secret_are_noticed() -> None:
    with pytest.raises(ValueError, match="do not belong together"):
        join({1: (PRIME - 1).to_bytes(SIZE)})


def test_coefficients_are_drawn_from_the_whole_field_and_none_beyond() -> None:
    """257 bits a draw; one that is not below the prime is thrown away, so that all elements are equally likely."""
    draws = [(PRIME << 7).to_bytes(SIZE), b"\xff" * SIZE, ((PRIME - 1) << 7).to_bytes(SIZE), (5 << 7).to_bytes(SIZE)]
    left = iter(draws)
    (share,) = split(bytes(31) + b"\x09", 3, [10], lambda size: next(left))
    assert int.from_bytes(share) == 9 - 10 + 100 * 5
    assert list(left) == []
