"""[privacy]: whether the server learns sums only, and how an update becomes whole numbers for that."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, StrictBool

from hansa.tables import Table
from privacy.secagg.terms import MOST_ROWS, threshold

if TYPE_CHECKING:
    from privacy.dp.config import DpTable

FROM = 3  # sites from which "auto" is on: of two sites each learns the other's update by subtraction
TUNE = "hansa tune clip APP"

Bound = Annotated[float, Field(ge=1e-30, le=1e30)]


class PrivacyTable(Table):
    """[privacy]: secure aggregation."""

    secure: Literal["auto"] | StrictBool = Field(
        default="auto", description='"auto", true or false'
    )  # auto: from FROM sites
    ring_bits: Literal[32, 24, 20, 16] = 32  # of a value on the wire; fewer round more coarsely
    clip: Bound | Mapping[str, Bound] | None = Field(
        default=None, description="a bound above 0, or a table of bounds by part such as { delta = 0.5, control = 0.1 }"
    )  # of each value of an update
    max_weight: Annotated[int, Field(ge=1, le=MOST_ROWS)] | None = None  # rows from which a site weighs no more
    threshold: Annotated[int, Field(ge=2)] | None = None  # answers without which no sum is opened; None: > 2/3 of them

    def wants(self, sites: int) -> bool:
        """Whether it asks for secure aggregation over so many sites of a federation."""
        return sites >= FROM if self.secure == "auto" else self.secure

    def least(self, asked: int) -> int:
        """Answers of so many sites without which no sum is opened."""
        return max(self.threshold or 0, threshold(asked))

    def under(self, dp: "DpTable | None") -> Self:
        """This table in a run with [dp], where sites weigh public numbers, not their rows."""
        return self if dp is None else self.model_copy(update={"max_weight": dp.most_weight})

    def bound(self, part: str) -> float | None:
        """Of a part's values; None where nothing is said."""
        return self.clip.get(part) if isinstance(self.clip, Mapping) else self.clip
