"""What releases cost, as an accountant has it."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Literal


@dataclass(frozen=True)
class Cost:
    """What releases cost together.

    Args:
        epsilon: at delta; never negative, infinite without noise.
        delta: as asked.
        accountant: whose bound it is.
        remark: why it is not PLD's, in words; "" where it is.
    """

    epsilon: float
    delta: float
    accountant: Literal["PLD", "RDP"]
    remark: str = ""

    @property
    def shown(self) -> str:
        """Epsilon to four digits, rounded up."""
        return rounded_up(self.epsilon)


def rounded_up(epsilon: float) -> str:
    """An epsilon to four digits, as one reads it."""
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(epsilon)):.4g}"
