"""What the tables of federation.toml have in common, and the one that belongs to the ground: [federation]."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Table(BaseModel):
    """A table of federation.toml: frozen, unknown keys refused. Each package owns its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FederationTable(Table):
    """[federation]: what is trained, and the seed from which a simulation derives every draw."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
    task: Annotated[str, Field(pattern=r"^.+\.py:[A-Za-z_]\w*$")]  # file.py:Class, the path relative to federation.toml
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
