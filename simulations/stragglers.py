"""Sites that are slower than the others, as a simulation has them."""

from typing import Annotated

from pydantic import Field

from hansa.tables import Table


class Stragglers(Table):
    """[simulation] stragglers: sites that get through a part of their local work only, drawn anew each round."""

    fraction: Annotated[float, Field(ge=0, le=1)]  # of the sites asked
    keep: bool = False  # their partial work counts; else they are dropped
