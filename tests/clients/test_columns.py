"""What a column's values become, and which are refused, with file, column, row and mend."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from clients import columns
from clients.data import DataTable
from clients.reading import Sheet
from hansa.errors import UserError


def sheet(**values: list[Any]) -> Sheet:
    frame = pd.DataFrame(values)
    frame.index = pd.RangeIndex(1, len(frame) + 1)
    return Sheet("a.csv", frame)


def table(**keys: Any) -> DataTable:
    return DataTable(csv="a.csv", target="y", **keys)


def features(one: Sheet, **keys: Any) -> list[list[float]]:
    of = table(**keys)
    names = columns.feature_names(one, of)
    rows: list[list[float]] = columns.features(columns.mark_missing(one, of, names), of, names).tolist()
    return rows


def test_features_are_every_other_column_in_alphabetical_order() -> None:
    """So that two sites with the same columns in another order have the same tensors."""
    one = sheet(b=[2.0], y=[0], patient=["p"], a=[1.0], note=["free text"], day=["2024-01-01"])
    keys = {"ignore": ["note"], "split": {"by": "patient", "after": "2024-01-01", "column": "day"}}
    assert features(one, **keys) == [[1.0, 2.0]]


def test_listed_features_keep_their_order() -> None:
    assert features(sheet(a=[1.0], b=[2.0], c=[3.0]), features=["c", "a"]) == [[3.0, 1.0]]


@pytest.mark.parametrize("values", [[1, 4], [1.0, 4.0], ["1", "4"], ["1.0", "4"]])
def test_categories_are_one_hot_in_the_order_listed_whatever_the_file_calls_them(values: list[Any]) -> None:
    assert features(sheet(cp=values), categories={"cp": [4, 3, 1]}) == [[0, 0, 1], [1, 0, 0]]


def test_text_categories_are_met_by_themselves_only() -> None:
    assert features(sheet(code=["1E2", "100"]), categories={"code": ["100", "1E2"]}) == [[0, 1], [1, 0]]


def test_booleans_are_zero_and_one() -> None:
    assert features(sheet(smokes=[True, False])) == [[1], [0]]
    assert features(sheet(smokes=["TRUE", "false"]), categories={"smokes": [False, True]}) == [[0, 1], [1, 0]]


def test_values_of_na_are_missing_in_numbers_and_categories() -> None:
    one = sheet(a=["?", "2"], b=[-9.0, 3.0], c=["?", "x"])
    found = features(one, na=["?", -9], missing="mean", categories={"c": ["x", "z"]})
    np.testing.assert_equal(found, [[np.nan] * 4, [2, 3, 1, 0]])


@pytest.mark.parametrize(
    ("values", "keys", "says"),
    [
        ([1.0, "abc"], {}, "row 2: 'abc' is not a number; correct it, or say in [data]"),
        ([pd.Timestamp("2024-01-01")] * 2, {}, "row 1: '2024-01-01"),
        ([1.0, float("inf")], {}, "row 2: 'inf' is infinite or beyond float32"),
        ([1e39, 1.0], {}, "row 1: '1e+39' is infinite or beyond float32"),
        ([1.0, None], {}, 'row 2: there is no value, but missing = "error"; complete the row'),
        ([1.0, 1.5], {"types": {"x": "int"}}, "row 2: '1.5' is not a whole number"),
        (
            ["m", "mal"],
            {"categories": {"x": ["m", "male"]}},
            "row 2: 'mal' is not in categories; the nearest there is 'male'",
        ),
        ([1, 5], {"categories": {"x": [1, 2]}}, "row 2: '5' is not in categories"),
    ],
)
def test_feature_value_that_cannot_be_used_is_refused(values: list[Any], keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        features(sheet(x=values), **keys)
    (problem,) = caught.value.problems
    assert problem.startswith("a.csv: column 'x', ")
    assert says in problem


def test_every_bad_column_has_its_line() -> None:
    with pytest.raises(UserError) as caught:
        features(sheet(a=["x"], b=[1.0], c=["z"]))
    assert [problem.split(",")[0] for problem in caught.value.problems] == ["a.csv: column 'a'", "a.csv: column 'c'"]


@pytest.mark.parametrize(
    ("values", "keys", "becomes"),
    [
        ([1, 0], {}, np.array([1, 0], dtype=np.int64)),
        ([True, False], {}, np.array([1, 0], dtype=np.int64)),
        ([1.0, 0.0], {}, np.array([1.0, 0.0])),
        ([1.0, 0.0], {"target_type": "class"}, np.array([1, 0], dtype=np.int64)),
        ([61, 70], {"target_type": "number"}, np.array([61.0, 70.0])),
        (["b", "a"], {"classes": ["a", "b"]}, np.array([1, 0], dtype=np.int64)),
        ([2, 1], {"classes": [1, 2]}, np.array([1, 0], dtype=np.int64)),
    ],
)
def test_target_is_a_class_or_a_number(values: list[Any], keys: dict[str, Any], becomes: Any) -> None:
    found = columns.target(sheet(y=values), table(**keys))
    np.testing.assert_array_equal(found, becomes)
    assert found.dtype == becomes.dtype


@pytest.mark.parametrize(
    ("values", "keys", "says"),
    [
        ([0, None], {}, "row 2: there is no value, but the column is the target"),
        (["a", "b"], {}, "row 1: 'a' is not a number; list the target's values in [data] classes"),
        (
            ["benign", "benin"],
            {"classes": ["benign", "malignant"]},
            "row 2: 'benin' is not in classes; the nearest there is 'benign'",
        ),
        ([0, -1], {"target_type": "class"}, "row 2: '-1' is no class (0, 1, 2, ...)"),
        ([0.5, 1.0], {"target_type": "class"}, "row 1: '0.5' is no class"),
        ([0.5, float("inf")], {}, "row 2: 'inf' is infinite"),
    ],
)
def test_target_that_cannot_be_used_is_refused(values: list[Any], keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        columns.target(sheet(y=values), table(**keys))
    assert says in str(caught.value)


def late(days: list[Any], after: str) -> list[bool]:
    return [bool(one) for one in columns.is_late(sheet(day=days), table(split={"after": after, "column": "day"}))]


def test_rows_on_the_date_are_test_rows() -> None:
    assert late(["2023-12-31", "2024-01-01", "2024-01-02"], "2024-01-01") == [False, True, True]


def test_dates_are_times_in_utc_unless_they_name_a_zone() -> None:
    """01:30 in Berlin on New Year's Day is still 2023 in UTC."""
    assert late(["2024-01-01T01:30+02:00", "2024-01-01T01:30"], "2024-01-01") == [False, True]
    assert late([pd.Timestamp("2023-12-31"), pd.Timestamp("2024-01-01")], "2024-01-01") == [False, True]
    assert late([2023, 2024], "2024-01-01") == [False, True]


@pytest.mark.parametrize(("day", "says"), [("01/02/2024", "is no date; write dates as"), (None, "there is no value")])
def test_what_is_no_date_is_refused(day: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        late(["2024-01-01", day], "2024-01-01")
