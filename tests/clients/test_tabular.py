"""A table as tensors: the split leaks nothing, scaling is that of the training rows, and errors are clear lines."""

import datetime
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from clients.data import DataTable, DataWarning, open_source
from clients.reading import Sheet
from clients.split import Rows
from clients.tabular import Encoded, TableSource, encode, scale
from hansa.errors import UserError

CUT = datetime.date(2024, 1, 1)


def source(
    base: Path, frame: pd.DataFrame, seed: int = 0, test: pd.DataFrame | None = None, **keys: Any
) -> TableSource:
    frame.to_csv(base / "a.csv", index=False)
    if test is not None:
        test.to_csv(base / "test.csv", index=False)
        keys["test_path"] = "test.csv"
    opened = open_source(DataTable(csv="{site}.csv", target="y", **keys), base, "a", seed)
    assert isinstance(opened, TableSource)
    return opened


def both(of: TableSource) -> tuple[Rows, Rows]:
    return of.split("train"), of.split("test")


def ids(rows: Rows) -> list[int]:
    return [int(one) for one in rows.tensors[0][:, 0]]


def numbered(n: int, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"a_row": np.arange(n), "y": np.arange(n) % 2, **more})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property; each writes the file anew."""
    return tmp_path_factory.mktemp("tables")


@given(st.lists(st.integers(0, 6), min_size=4, max_size=40).filter(lambda one: len(set(one)) > 1), st.integers(0, 999))
def test_no_patient_on_both_sides_and_no_row_lost_or_doubled(folder: Path, patients: list[int], seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        train, test = both(source(folder, numbered(len(patients), patient=patients), seed, split={"by": "patient"}))
    assert sorted(ids(train) + ids(test)) == list(range(len(patients)))
    assert {patients[i] for i in ids(train)}.isdisjoint(patients[i] for i in ids(test))
    assert train.groups is not None
    assert len(train.groups) == len(train)


days = st.dates(CUT - datetime.timedelta(9), CUT + datetime.timedelta(9))


@given(st.lists(st.tuples(days, st.integers(0, 6)), min_size=1, max_size=40), st.booleans())
def test_neither_later_date_nor_test_patient_stands_in_training(
    folder: Path, visits: list[tuple[datetime.date, int]], by: bool
) -> None:
    """Without groups every row is kept. With them, late rows of patients who have early ones are on neither side."""
    early = {i for i, (day, _) in enumerate(visits) if day < CUT}
    known = {patient for i, (_, patient) in enumerate(visits) if i in early}
    late = {i for i, (_, patient) in enumerate(visits) if i not in early and not (by and patient in known)}
    frame = numbered(len(visits), day=[day for day, _ in visits], patient=[patient for _, patient in visits])
    split = {"after": CUT, "column": "day"} | ({"by": "patient"} if by else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        opened = source(folder, frame, ignore=[] if by else ["patient"], split=split)
        for name, expected in [("train", early), ("test", late)]:
            if expected:
                assert ids(opened.split(name)) == sorted(expected)  # type: ignore[arg-type]
            else:
                with pytest.raises(UserError, match=f"no row is left to {name} on"):
                    opened.split(name)  # type: ignore[arg-type]


def test_late_rows_that_are_left_out_are_told(tmp_path: Path) -> None:
    frame = numbered(4, day=["2023-01-01", "2023-01-02", "2025-01-01", "2025-01-01"], p=[1, 2, 2, 3])
    with pytest.warns(DataWarning) as caught:
        source(tmp_path, frame, split={"after": CUT, "column": "day", "by": "p"}).split("test")
    assert "1 test rows are left out, as their 'p' stands in the training rows too" in str(caught[0].message)


def test_date_may_be_text_or_a_date_of_toml(tmp_path: Path) -> None:
    frame = numbered(6, day=[f"202{i}-05-01" for i in range(6)])
    trains = [
        ids(source(tmp_path, frame, split={"after": d, "column": "day"}).split("train")) for d in ("2024-01-01", CUT)
    ]
    assert trains == [[0, 1, 2, 3]] * 2


def test_split_is_seeded_by_run_and_site_and_stratified(tmp_path: Path) -> None:
    frame = numbered(200)
    draws = [ids(source(tmp_path, frame, seed).split("test")) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == 40
    assert sum(i % 2 for i in draws[0]) == 20


def test_file_is_read_once(tmp_path: Path) -> None:
    opened = source(tmp_path, numbered(10))
    train = opened.split("train")
    (tmp_path / "a.csv").unlink()
    assert opened.split("train") is train
    assert len(opened.split("test")) == 2


def test_tensors_have_the_shapes_and_types_of_a_loss(tmp_path: Path) -> None:
    x, y = source(tmp_path, numbered(10)).split("train").tensors
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((8, 1), torch.float32, (8,), torch.int64)
    _, y = source(tmp_path, numbered(10), target_type="number").split("train").tensors
    assert y.dtype == torch.float32


def encoded(x: np.ndarray[Any, np.dtype[np.float64]], n_train: int) -> Encoded:
    names = [f"x{i}" for i in range(x.shape[1])]
    return Encoded("a.csv", names, x, np.zeros(len(x)), None, np.arange(len(x)) >= n_train)


values = st.floats(-1e3, 1e3).map(lambda one: round(one, 3))


@given(st.lists(st.tuples(values, values, st.booleans()), min_size=4, max_size=20))
def test_scaling_equals_sklearn_s_of_the_training_rows_up_to_the_unbiased_deviation(
    rows: list[tuple[Any, ...]],
) -> None:
    """StandardScaler divides by the biased deviation: the unbiased one is sqrt(n / (n - 1)) of it. A gap in the first
    column is filled with its training mean, as SimpleImputer does.
    """
    x = np.array([(np.nan if gap and i else a, b) for i, (a, b, gap) in enumerate(rows)], dtype=float)
    n = len(x) - 1
    imputer = SimpleImputer().fit(x[:n])
    scaler = StandardScaler().fit(imputer.transform(x[:n]))
    full = imputer.transform(x)
    unbiased = np.where(full[:n].max(0) == full[:n].min(0), 1, scaler.scale_ * np.sqrt(n / (n - 1)) + 1e-9)
    expected = (full - scaler.mean_) / unbiased
    np.testing.assert_allclose(scale(encoded(x, n), standardize=True), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(scale(encoded(x, n), standardize=False), full, rtol=1e-12)


@pytest.mark.parametrize("n_train", [1, 3])
def test_lone_row_and_constant_column_become_zero_not_nan(n_train: int) -> None:
    """Even where the mean of equal numbers is not exactly that number, as it is not for 0.1 in binary."""
    scaled = scale(encoded(np.array([[1e6 + 0.1]] * 3 + [[1e6 + 2.1]]), n_train), standardize=True)
    np.testing.assert_allclose(scaled[:, 0], [0, 0, 0, 2])


def test_test_rows_do_not_move_the_scale() -> None:
    x = np.array([[0.0], [2.0], [9.0]])
    other = np.array([[0.0], [2.0], [-5.0]])
    np.testing.assert_array_equal(scale(encoded(x, 2), True)[:2], scale(encoded(other, 2), True)[:2])


@pytest.mark.parametrize("n_train", [0, 1])
def test_mean_of_no_value_is_refused(n_train: int) -> None:
    with pytest.raises(UserError, match="column 'x0' has no value in the training rows, so no mean"):
        scale(encoded(np.array([[np.nan], [1.0]]), n_train), standardize=False)


def test_missing_category_becomes_the_shares_of_the_training_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"c": ["u", "u", "v", "w", None], "y": [0, 1, 0, 1, 0]})
    keys: dict[str, Any] = {"categories": {"c": ["u", "v", "w"]}, "missing": "mean", "split": {"test": 0}}
    x, _ = source(tmp_path, frame, **keys).split("train").tensors
    torch.testing.assert_close(x[-1], torch.tensor([0.5, 0.25, 0.25]))


def test_na_concerns_features_only(tmp_path: Path) -> None:
    """0 often stands for a blood pressure that was not taken, and for a healthy patient in the target."""
    frame = pd.DataFrame({"pressure": [0, 80, 120], "y": [0, 1, 0]})
    x, y = source(tmp_path, frame, na=[0], missing="mean", split={"test": 0}).split("train").tensors
    assert (x[:, 0].tolist(), y.tolist()) == ([100, 80, 120], [0, 1, 0])


def test_rows_with_a_gap_are_dropped_where_asked_for(tmp_path: Path) -> None:
    frame = numbered(6, z=[1, None, 3, None, 5, 6])
    assert ids(source(tmp_path, frame, missing="drop", split={"test": 0}).split("train")) == [0, 2, 4, 5]


def test_test_rows_of_their_own_file(tmp_path: Path) -> None:
    train, test = both(source(tmp_path, numbered(4), test=numbered(3)))
    assert (ids(train), ids(test)) == ([0, 1, 2, 3], [0, 1, 2])


def test_patient_in_both_files_is_refused(tmp_path: Path) -> None:
    opened = source(tmp_path, numbered(2, p=[1, 2]), test=numbered(2, p=[3, 2]), split={"by": "p"})
    with pytest.raises(UserError, match=r"test.csv: column 'p', row 2: '2' stands in the training rows too"):
        opened.split("train")


@pytest.mark.parametrize(
    ("name", "split"), [("test", {"test": 0}), ("train", {"after": "1900-01-01", "column": "day"})]
)
def test_empty_side_is_refused_when_asked_for(name: Any, split: dict[str, Any], tmp_path: Path) -> None:
    opened = source(tmp_path, numbered(4, day="2020-01-01"), split=split, features=["a_row"])
    assert len(opened.split("test" if name == "train" else "train")) == 4
    with pytest.raises(UserError, match=f"a.csv: no row is left to {name} on; change split"):
        opened.split(name)


def test_one_class_only_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(DataWarning) as caught:
        source(tmp_path, pd.DataFrame({"x": [1.0, 2, 3], "y": 1})).split("train")
    assert [str(one.message).partition(": ")[2] for one in caught] == [
        f"the {name} rows are all of class 1; their AUC is undefined" for name in ("train", "test")
    ]


def test_missing_columns_are_named_with_the_nearest() -> None:
    one = Sheet("a.csv", pd.DataFrame({"age": [1], "label": [0]}))
    with pytest.raises(UserError) as caught:
        encode([one], DataTable(csv="a.csv", target="lable", features=["agee"]))
    assert caught.value.problems == (
        "a.csv: there is no column 'agee'; the nearest name is 'age'; correct it in [data]",
        "a.csv: there is no column 'lable'; the nearest name is 'label'; correct it in [data]",
    )


def test_table_without_a_feature_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column is left as a feature"):
        source(tmp_path, pd.DataFrame({"y": [0, 1]})).split("train")
