"""Metric sums in whole numbers, for those that have no torch: x counts as round(x * 2^30), in int64."""

import numpy as np
from numpy.typing import NDArray

SCALAR_BITS = 30


def in_range(scaled: NDArray[np.float64], sites: int) -> bool:
    """Whether scaled sums are finite, and may be added over so many sites."""
    return bool((np.abs(scaled) < 2.0**62 / sites).all())


def whole(sums: NDArray[np.float64], sites: int) -> NDArray[np.int64] | None:
    """Metric sums in fixed point, the same as `privacy.fixed_point.to_fixed` gives; None: not finite, or too large."""
    scaled = sums * 2.0**SCALAR_BITS
    return np.rint(scaled).astype(np.int64) if in_range(scaled, sites) else None
