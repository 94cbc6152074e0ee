"""Shamir's secret sharing of 32 bytes over the prime field of order 2^256 + 297 (Shamir, CACM 1979).

Python's whole numbers are not constant in time: whoever measures a site's process to the microsecond is not kept out.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

PRIME = (1 << 256) + 297
SIZE = 33  # bytes of a share


def split(secret: bytes, threshold: int, points: Sequence[int], random: Callable[[int], bytes]) -> list[bytes]:
    """Shares of 32 bytes, one for each point (not 0): any `threshold` of them give it back, fewer say nothing."""
    polynomial = [int.from_bytes(secret), *(_element(random) for _ in range(threshold - 1))]
    return [_at(polynomial, point).to_bytes(SIZE) for point in points]


def join(shares: Mapping[int, bytes]) -> bytes:
    """The 32 bytes of which these are shares, by point.

    Raises:
        ValueError: they are shares of nothing.
    """
    factors = at_zero(tuple(shares))
    value = sum(int.from_bytes(share) * factors[point] for point, share in shares.items()) % PRIME
    if value >> 256:
        raise ValueError("shares that do not belong together")
    return value.to_bytes(32)


def is_share(share: bytes) -> bool:
    """Whether some bytes are an element of the field, in its one encoding."""
    return len(share) == SIZE and int.from_bytes(share) < PRIME


@lru_cache(maxsize=8)
def at_zero(points: tuple[int, ...]) -> Mapping[int, int]:
    """Lagrange's factors: by how much the value at each point counts in the value at 0."""
    factors = {}
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        factors[point] = above * pow(below, -1, PRIME) % PRIME
    return factors


def _at(polynomial: Sequence[int], point: int) -> int:
    value = 0  # reduced at the end: a point has 10 bits at most, and a remainder takes longer than some bits more
    for coefficient in reversed(polynomial):
        value = value * point + coefficient
    return value % PRIME


def _element(random: Callable[[int], bytes]) -> int:
    """Uniform: drawn from 257 bits until it is below the prime."""
    while (value := int.from_bytes(random(SIZE)) >> 7) >= PRIME:
        pass
    return value
