"""Files and databases as they come: one table reads alike from all three, and what cannot be read is one clear line."""

import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import torch

from clients.data import DataTable
from clients.reading import Sheet, read
from clients.tabular import TableSource
from hansa.errors import UserError

TEXT = "age,sex,visit,y\n61,m,2023-01-05,0\n47.5,f,2024-02-01,1\n70,f,2022-11-30,1\n33,m,2024-06-15,0\n"
QUERY = "select age, sex, visit, y from rows where site = :site order by id"


def refusal(table: DataTable, base: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(table, base, "a")
    (problem,) = caught.value.problems
    assert "\n" not in problem
    return problem


def of_csv(base: Path, content: str | bytes, **keys: Any) -> DataTable:
    (base / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return DataTable(csv="{site}.csv", target="y", **keys)


def sheet(base: Path, content: str | bytes, **keys: Any) -> Sheet:
    return read(of_csv(base, content, **keys), base, "a")


def database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "create table rows (id integer primary key, site text, age real, sex text, visit text, y integer)"
    )
    for site in ("b", "a"):
        for line in TEXT.splitlines()[1:]:
            connection.execute(
                "insert into rows (site, age, sex, visit, y) values (?, ?, ?, ?, ?)", [site, *line.split(",")]
            )
    connection.commit()
    connection.close()


def test_csv_parquet_and_sql_of_one_table_give_equal_tensors(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    frame = pd.read_csv(tmp_path / "a.csv", parse_dates=["visit"]).astype({"sex": "category"})
    frame.to_parquet(tmp_path / "a.parquet")
    database(tmp_path / "all.db")
    same: dict[str, Any] = {
        "target": "y",
        "categories": {"sex": ["f", "m"]},
        "split": {"after": "2024-01-01", "column": "visit"},
    }
    tables = [
        DataTable(csv="{site}.csv", **same),
        DataTable(parquet="{site}.parquet", **same),
        DataTable(sql="sqlite:///all.db", query=QUERY, **same),
    ]
    for table in tables:
        source = TableSource(table, tmp_path, "a", seed=0)
        x, y = source.split("train").tensors
        torch.testing.assert_close(x, torch.tensor([[61, 0, 1], [70, 1, 0.0]]))
        torch.testing.assert_close(y, torch.tensor([0, 1]))
        x, y = source.split("test").tensors
        torch.testing.assert_close(x, torch.tensor([[47.5, 1, 0], [33, 0, 1]]))
        torch.testing.assert_close(y, torch.tensor([1, 0]))


def test_row_numbers_count_from_one_below_the_names(tmp_path: Path) -> None:
    assert sheet(tmp_path, "x,y\n5,0\n\n6,1\n").frame.index.tolist() == [1, 2]


def test_listed_text_is_kept_as_it_is_written(tmp_path: Path) -> None:
    """Texts that are listed are no numbers ("01"), and no gaps ("None", which is one where it is not listed)."""
    frame = sheet(tmp_path, "c,d,y\n01,None,0\n1,,1\n", categories={"c": ["01", "1"], "d": ["None"]}).frame
    assert frame["c"].tolist() == ["01", "1"]
    assert frame["d"].isna().tolist() == [False, True]
    assert sheet(tmp_path, "c,d,y\n1,None,0\n").frame["d"].isna().all()


def test_row_numbers_that_a_tool_wrote_are_left_out(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1.0], "y": [0]}).to_csv(tmp_path / "index.csv")
    frame = sheet(tmp_path, (tmp_path / "index.csv").read_bytes()).frame
    assert list(frame.columns) == ["x", "y"]


def test_mark_of_utf8_and_other_separators_are_understood(tmp_path: Path) -> None:
    frame = sheet(tmp_path, "\ufeffx; y\n1; 0\n", separator=";").frame
    assert frame.to_dict("list") == {"x": [1], "y": [0]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty"),
        ("x,y\n", "there are no rows"),
        ("x,y\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
        ("x,y\n1,2,3\n4,5\n", "rows have more values than the first row has names"),
        ("x,y\n1,2,3,4\n4,5,6,7\n", "rows have more values than the first row has names"),
        ('x,y\n"1,2\n', "this is no readable CSV"),
        (b"x,y\n\xff\xfe,1\n", "this is not UTF-8 text"),
        ("x,x,y\n1,2,3\n", "two columns have the name 'x'; rename one"),
        ("x;y\n1;2\n", 'set separator = ";" in [data]'),
    ],
)
def test_csv_that_cannot_be_used_is_refused(content: str | bytes, says: str, tmp_path: Path) -> None:
    problem = refusal(of_csv(tmp_path, content), tmp_path)
    assert says in problem
    assert problem.startswith(f"{tmp_path / 'a.csv'}: ")


@pytest.mark.parametrize("keys", [{"csv": "{site}.csv"}, {"parquet": "{site}.csv"}])
def test_missing_file_is_refused(keys: dict[str, str], tmp_path: Path) -> None:
    problem = refusal(DataTable(target="y", **keys), tmp_path)
    assert problem.startswith(f"{tmp_path / 'a.csv'}: there is no such file")


def test_parquet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    table = DataTable(parquet="a.parquet", target="y")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    assert "this is no readable Parquet file" in refusal(table, tmp_path)
    double = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["y", "y"])
    pyarrow.parquet.write_table(double, tmp_path / "a.parquet")
    assert "two columns have the name 'y'" in refusal(table, tmp_path)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select age from nowhere order by 1", "the query failed (no such table: nowhere); correct sql or query"),
        ("select y from rows where site = :ward order by id", "[data] query: :ward is unknown"),
        ("select y, y from rows order by id", "two columns have the name 'y'"),
        ("select y from rows where site = 'none' order by id", "there are no rows"),
        ("update rows set y = 1 -- order by", "the query failed"),
    ],
)
def test_query_that_fails_is_refused(query: str, says: str, tmp_path: Path) -> None:
    database(tmp_path / "all.db")
    assert says in refusal(DataTable(sql="sqlite:///all.db", query=query, target="y"), tmp_path)


def test_query_changes_nothing_in_the_database(tmp_path: Path) -> None:
    database(tmp_path / "all.db")
    table = DataTable(sql="sqlite:///all.db", query="delete from rows where site = :site -- order by", target="y")
    refusal(table, tmp_path)
    count = sqlite3.connect(tmp_path / "all.db").execute("select count(*) from rows").fetchone()
    assert count == (8,)


def test_missing_sqlite_file_is_refused_and_not_made(tmp_path: Path) -> None:
    table = DataTable(sql="sqlite:///{site}.db", query="select 1 order by 1", target="y")
    assert "there is no such file" in refusal(table, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://ann:hunter2@host/?timeout=hunter2",  # the driver's own words hold it
        "nosuch://ann:hunter2@host/db",
        "postgresql://ann:hunter2@host:port/db",
        "postgresql://ann:hunt@hunter2@host/db",
        "hunter2",
    ],
)
def test_secrets_of_a_url_are_in_no_message(url: str, tmp_path: Path) -> None:
    problem = refusal(DataTable(sql=url, query="select 1 order by 1", target="y"), tmp_path)
    assert "sql" in problem
    assert "hunter2" not in problem
