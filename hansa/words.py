"""What pydantic found wrong with a table, in plain words: one line a key.

`Table` raises pydantic's errors anew as errors of type SAID, whose message is ready to print; a nested table has then
spoken for itself, and its lines pass through unchanged.
"""

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from hansa.choose import nearest

SAID = "said"
SECRET_KEY = re.compile(r"pass|secret|token|credential|sql|url|dsn", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://[^/\s]*@")  # a URL with a user, and perhaps a password

# What a value must be, by the type of pydantic's error; the names in braces are of the error's context.
MUST = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text in quotes",
    "path_type": "a path in quotes",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} or fewer",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}

Loc = tuple[int | str, ...]


@dataclass(frozen=True)
class Mistyped:
    """A value that pydantic would convert in silence, e.g. the text "0.1" to a number: hidden, so that it complains."""

    value: Any


def hide_mistyped(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table, those hidden whose TOML type is not the field's."""
    types = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {k: Mistyped(v) if k in types and _converts(types[k], v) else v for k, v in values.items()}


def said(text: str, *loc: str | int) -> InitErrorDetails:
    """A problem at a key, ready to print."""
    return InitErrorDetails(type=PydanticCustomError(SAID, "{text}", {"text": text}), loc=loc, input=None)


def in_words(error: ValidationError, model: type[BaseModel], values: Any, whose: str) -> ValidationError:
    """The same problems in plain words.

    Args:
        error: of validating the model, its nested tables' errors already in words.
        model: a table.
        values: what was validated.
        whose: "", or who has the keys, e.g. "FedProx".
    """
    groups: dict[Loc, list[ErrorDetails]] = {}
    for one in error.errors(include_url=False):
        groups.setdefault(_key(one, model, values), []).append(one)
    inner = {loc[:end] for loc in groups for end in range(1, len(loc))}  # a wrong item says more than a wrong list
    lines = [said(_line(loc, errors, model, whose), *loc) for loc, errors in groups.items() if loc not in inner]
    return ValidationError.from_exception_data(model.__name__, lines)


def spoken(error: ErrorDetails) -> str:
    """The message of an error in words, or of a ValueError that a validator raised."""
    return str(error["ctx"]["text"] if error["type"] == SAID else error["ctx"]["error"])


def either(options: Iterable[str]) -> str:
    """'a, b or c', each once."""
    *others, last = dict.fromkeys(options)
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: Any) -> str:
    """A value as the user wrote it, cut short; a table is not repeated, nor a URL with a user in it."""
    if isinstance(value, Mapping):
        return "a table"
    text = value.isoformat() if isinstance(value, datetime.date | datetime.time) else _json(value)
    return "" if SECRET_VALUE.search(text) else text if len(text) <= 60 else f"{text[:57]}..."


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _converts(annotation: Any, value: Any) -> bool:
    kinds = _members(annotation)
    if isinstance(value, bool):
        return kinds <= {int, float, str}
    if isinstance(value, str):
        return kinds <= {int, float, bool}
    return isinstance(value, int | float) and kinds == {bool}


def _members(annotation: Any) -> set[Any]:
    """The types of a union, or the one type; None is left out."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {one for part in get_args(annotation) for one in _members(part)}
    return set() if annotation is NoneType else {get_origin(annotation) or annotation}


def _key(error: ErrorDetails, model: type[BaseModel], values: Any) -> Loc:
    """Where the user finds it: the branches of unions that pydantic tried are left out."""
    loc = error["loc"]
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return (*loc, error["ctx"]["discriminator"].strip("'"))
    if error["type"] in (SAID, "missing", "extra_forbidden"):
        return loc[:1] + loc[2:] if loc and loc[0] in model.model_fields and _tagged(model, str(loc[0])) else loc
    found, at = [], values
    for part in loc:
        inside = part in at if isinstance(at, Mapping) else isinstance(at, list) and isinstance(part, int)
        if inside:
            found.append(part)
            at = at[part]
    return tuple(found)


def _tagged(model: type[BaseModel], name: str) -> bool:
    """Whether a key of the nested table tells its class."""
    field = model.model_fields[name]
    marks = [mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ())]
    return any(getattr(mark, "discriminator", None) for mark in (field, *marks))


def _line(loc: Loc, errors: list[ErrorDetails], model: type[BaseModel], whose: str) -> str:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    described = fields[str(loc[0])].description if len(loc) == 1 and loc[0] in fields else None
    first = errors[0]
    match first["type"]:
        case "said" | "value_error" | "assertion_error":
            return spoken(first)
        case "extra_forbidden":
            subject = f"{whose} has no such key" if whose else "no such key"
            return f"{subject}{nearest(str(loc[-1]), fields)} (keys: {', '.join(fields) or 'none'})"
        case "missing":
            return f"is missing; give {described}" if described else "is missing; add it"
        case "union_tag_not_found":
            return "is missing; give the name of one"
    must = described or either([_must(one) for one in errors])
    return f"must be {must}{_got(loc, first)}"


def _must(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in MUST:
        return MUST[kind].format_map({k: f"{v:g}" if isinstance(v, float) else v for k, v in context.items()})
    if kind in ("literal_error", "enum"):
        return _options(error).replace("'", '"')
    if kind == "union_tag_invalid":
        return either(f'"{name}"' for name in re.findall("'(.*?)'", _options(error)))
    if kind.startswith("date"):
        return "a date such as 2024-01-01"
    return error["msg"].removeprefix("Input should be ")


def _got(loc: Loc, error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "union_tag_invalid":
        value = error["ctx"]["tag"]
    text = shown(value.value if isinstance(value, Mistyped) else value)
    if not text or any(SECRET_KEY.search(str(part)) for part in loc):
        return ""
    return f"; got {text}" + nearest(str(value), re.findall("'(.*?)'", _options(error)), '"{}"')


def _options(error: ErrorDetails) -> str:
    """As pydantic lists them: 'last' or 'best'."""
    context = error.get("ctx", {})
    return str(context.get("expected") or context.get("expected_tags") or "")
