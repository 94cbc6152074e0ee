"""What a site asks of each plan, whatever federation.toml had said: numbers within [bounds], a finite model."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clients.bounds import BoundsTable
from clients.refusals import Reason, Refused, refuse_unbounded
from hansa.wire.link_pb2 import Plan
from privacy.dp.terms import HYPER

PIECE = 1 << 20  # numbers looked at at once


def check_plan(bounds: BoundsTable, hyper: str, round: int) -> None:
    """Whether a plan keeps to the bounds, whatever federation.toml had said.

    Args:
        bounds: the site's.
        hyper: the plan's hyper-parameters, JSON. What is no JSON is left to those who read the plan.
        round: the plan's.

    Raises:
        Refused: it does not.
    """
    try:
        values = json.loads(hyper)
    except (ValueError, RecursionError):
        return
    refuse_unbounded(
        bounds.broken_by_plan(values, round) if isinstance(values, dict) else None, f"the plan of round {round}"
    )
    if not _finite(values):
        raise Refused(Reason.PLAN, f"the plan of round {round}: a hyper-parameter that is not finite")


def check_vectors(plan: Plan, files: Mapping[str, Path]) -> None:
    """Whether a plan's model is one: with what is not finite, a site would tell by its answer what its rows make of it.

    Args:
        plan: as it came; what is small is in it.
        files: its larger vectors, by name.

    Raises:
        Refused: it is not.
    """
    for blob in plan.vectors:
        if blob.name == "counters":  # whole numbers
            continue
        file = files.get(blob.name)
        size = len(blob.data) if file is None else file.stat().st_size
        if size < 4:
            continue
        values = (
            np.frombuffer(blob.data, "<f4", size // 4) if file is None else np.memmap(file, "<f4", "r", 0, size // 4)
        )
        if not all(np.isfinite(values[at : at + PIECE]).all() for at in range(0, len(values), PIECE)):
            raise Refused(Reason.PLAN, f"the plan of round {plan.round}: {blob.name} is not finite")


def tells_rows(code: str, hyper: str) -> bool:
    """Whether a refusal of a plan tells of the rows here: unless a site is the unit, they say what a plan costs."""
    if code != Reason.BUDGET:
        return code == Reason.UNITS
    return bool(json.loads(hyper)[HYPER]["unit"] != "site")  # it has been read, or there would be no such refusal


def _finite(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not (isinstance(value, float) and not math.isfinite(value)) and all(map(_finite, inner))
