"""Strategies of the examples, found as a config finds them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strategies.base import Strategy, StrategyTable

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def chosen() -> Callable[..., Any]:
    """`chosen("moon.py:Moon", mu=0.0)`: what [strategy] with these keys gives."""

    def choose(name: str, **fields: Any) -> Strategy:
        table: TypeAdapter[Strategy] = TypeAdapter(StrategyTable)
        return table.validate_python({"name": name, **fields}, context={"folder": EXAMPLES})

    return choose
