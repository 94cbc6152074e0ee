"""What the tables of federation.toml have in common, and the one that belongs to the ground: [federation]."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from hansa.choose import choose
from hansa.errors import UserError
from hansa.words import hide_mistyped, in_words, said, shown


class Table(BaseModel):
    """A table of federation.toml: frozen, unknown keys refused, problems in plain words. Each package owns its own.

    A subclass may define `check(self, config: hansa.config.Config) -> Iterable[str]`: what is wrong with it in view of
    the other tables, a line a problem.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, values: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        whose = cls.__name__ if (info.context or {}).get("chosen") is cls else ""
        try:
            return handler(hide_mistyped(cls, values) if isinstance(values, Mapping) else values)
        except ValidationError as error:
            raise in_words(error, cls, values, whose) from None


def named(kind: str, base: type[Any], default: str | None = None) -> BeforeValidator:
    """Annotates a table whose key `name` chooses its class (see `hansa.choose`); the other keys are the class's fields.

    `Annotated[Strategy, named("strategies", Strategy)]`. The validation context gives the `folder` that the path in
    `file.py:Class` is relative to.
    """

    def validate(values: Any, info: ValidationInfo) -> Any:
        if not isinstance(values, Mapping):
            return values
        name, context = values.get("name", default), info.context or {}
        try:
            if not isinstance(name, str):
                raise UserError("is missing; add it" if name is None else "must be text in quotes")
            chosen = choose(kind, name, base, context.get("folder", Path()))
        except UserError as error:
            raise ValidationError.from_exception_data(kind, [said(str(error), "name")]) from error
        rest = {key: value for key, value in values.items() if key != "name"}
        return chosen.model_validate(rest, context={**context, "chosen": chosen})

    return BeforeValidator(validate)


def is_name(value: str) -> bool:
    """Whether it may name a federation or a site."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{,63}", value) is not None


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"must be {A_NAME}; got {shown(value)}")
    return value


A_NAME = "up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
Name = Annotated[str, AfterValidator(_name)]  # of a federation or a site: fit for a file's name
Device = Annotated[
    str,
    Field(
        pattern=r"^(auto|cpu|cuda(:\d{1,3})?|mps)$", description='"auto", "cpu", "cuda", "cuda:1" and the like, "mps"'
    ),
]


class FederationTable(Table):
    """[federation]: what is trained, and the seed from which a simulation derives every draw."""

    name: Annotated[Name, Field(description=A_NAME)]
    task: Annotated[
        str,
        Field(
            pattern=r"^.+\.py:[A-Za-z_]\w*$",
            description="file.py:Class, the path relative to federation.toml, e.g. task.py:Heart",
        ),
    ]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
