"""Secret randomness of a site: sampling coins, and Gaussian noise, from AES-256 in counter mode under a key used once.

A generator that is seeded (torch's, NumPy's) would do for neither: who learns its state takes the noise away again.
"""

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from privacy.secagg.keys import derive

COINS, NORMAL, SEEDS = b"hansa/dp/coins/1", b"hansa/dp/normal/1", b"hansa/dp/seeds/1"  # labels of HKDF
KEY = 32  # bytes
PAIRS = 1 << 13  # normals are made so many twos at a time: what is at work stays in the processor's cache


class Stream:
    """All randomness of one release. The same key gives the same numbers, if they are asked for in the same order.

    Coins, noise and seeds have keystreams of their own, so that how much is taken of one does not move another.

    Args:
        key: 32 bytes from the operating system, for this release alone: noise that is used twice can be subtracted.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY:
            raise ValueError(f"a key has {KEY} bytes, not {len(key)}")
        self._coins, self._normal, self._seeds = (_Keystream(key, label) for label in (COINS, NORMAL, SEEDS))

    def coins(self, rate: float, n: int) -> NDArray[np.bool_]:
        """N independent coins, each True with the chance `rate` in [0, 1], exact to 2^-64 and never above it."""
        if not 0 <= rate <= 1:
            raise ValueError(f"a chance lies between 0 and 1, not at {rate}")
        if rate == 1:
            return np.ones(n, bool)
        limit = np.uint64(int(rate * 2.0**64))  # exact: a power of two only moves the exponent
        return np.frombuffer(self._coins.take(8 * n), "<u8") < limit

    def seed(self) -> int:
        """63 bits for a generator whose draws need not be secret for ever, but not known to the server either."""
        return int.from_bytes(self._seeds.take(8), "little") >> 1

    def normal(self, out: Tensor | NDArray[Any], std: float) -> None:
        """Adds Gaussian noise of standard deviation `std` to each number of a float32 or float64 tensor, in place.

        The noise is made and added in float64 and only the sum is rounded to float32. Noise that was rounded first
        would be on a grid of its own, and the sum's last bits would tell what it was added to (Mironov, CCS 2012).
        """
        if not (np.isfinite(std) and std >= 0):
            raise ValueError(f"a standard deviation is finite and not negative, not {std}")
        numbers = out.detach().numpy() if isinstance(out, Tensor) else out
        if numbers.dtype not in (np.float32, np.float64) or not numbers.flags.c_contiguous:
            raise ValueError("noise goes on float32 or float64 that lie one after another on the CPU")
        flat = numbers.reshape(-1)
        for start in range(0, len(flat), 2 * PAIRS):
            part = flat[start : start + 2 * PAIRS]
            noise = self._normals(len(part))
            noise *= std
            noise += part
            part[:] = noise

    def _normals(self, n: int) -> NDArray[np.float64]:
        """N standard normals (Box and Muller 1958), 53 bits to each of the two uniforms of a pair; |z| <= 8.7."""
        half = (n + 1) // 2
        words = np.frombuffer(self._normal.take(16 * half), "<u8")
        uniforms = (words >> np.uint64(11)).astype(np.float64)
        uniforms += 0.5  # in (0, 1): the logarithm is finite
        uniforms *= 2.0**-53
        radius, angle = uniforms[:half], uniforms[half:]
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle *= 2 * np.pi
        pairs = np.empty(2 * half)
        np.cos(angle, out=pairs[:half])
        np.sin(angle, out=pairs[half:])
        pairs.reshape(2, half)[:] *= radius
        return pairs[:n]


class _Keystream:
    """The bytes of one purpose, each given out once."""

    def __init__(self, key: bytes, label: bytes) -> None:
        cipher = algorithms.AES(derive(key, b"", label, KEY))
        self._encryptor = Cipher(cipher, modes.CTR(bytes(16))).encryptor()

    def take(self, size: int) -> bytes:
        return self._encryptor.update(bytes(size))
