"""[data]: each rule refuses in a sentence that says what and how to mend it."""

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from clients.data import DataTable

SQL = 'sql = "sqlite:///a.db"\n'


def refusal(toml: str) -> str:
    with pytest.raises(ValidationError) as caught:
        DataTable.model_validate(tomllib.loads(toml))
    (problem,) = caught.value.errors()
    return str(problem["msg"])


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('target = "y"', "no source; set one of csv, parquet, sql, images"),
        ('csv = "a"\nparquet = "b"\ntarget = "y"', "csv and parquet are both set"),
        ('csv = "a"', "no target; name the column"),
        ('csv = "a"\ntarget = "y"\nsize = [2, 2]', "size has no effect with csv"),
        ('images = "a"\ntarget = "y"', "target has no effect with images"),
        ('parquet = "a"\ntarget = "y"\nseparator = ";"', "separator has no effect without csv"),
        ('csv = "{sight}.csv"\ntarget = "y"', "csv: {sight} is unknown; only {site} is filled in"),
        ('csv = "{site.csv"\ntarget = "y"', "csv: {site.csv is unknown"),
        (SQL + 'target = "y"', "sql needs query"),
        ('csv = "a"\ntarget = "y"\nquery = "select 1"', "query needs sql"),
        (
            SQL + 'target = "y"\nquery = "select * from t where s = \'{site}\' order by id"',
            "query: {site} is not filled",
        ),
        (SQL + 'target = "y"\nquery = "select * from t"', "query: add ORDER BY"),
        (
            SQL + 'target = "y"\nquery = "select * from t order by id"\ntest_path = "b"',
            "test_path has no effect with sql",
        ),
        ('csv = "a"\ntarget = "y"\ntest_path = "b"\nsplit = {test = 0.5}', "test_path and split are both set"),
        ('images = "a"\nsplit = {by = "patient"}', "split: by, after and column have no effect with images"),
        ('images = "a"\nclasses = [0, 1]', "classes: of images they are names of folders"),
        ('csv = "a"\ntarget = "y"\nclasses = ["a"]', "classes: list two or more"),
        ('csv = "a"\ntarget = "y"\nclasses = ["a", "a"]', "classes: 'a' stands twice"),
        (
            'csv = "a"\ntarget = "y"\nclasses = ["a", "b"]\ntarget_type = "number"',
            "classes has no effect with target_type",
        ),
        ('csv = "a"\ntarget = "y"\nfeatures = ["x", "y"]', "features lists the target 'y'"),
        ('csv = "a"\ntarget = "y"\nfeatures = []', "features is empty"),
        ('csv = "a"\ntarget = "y"\nfeatures = ["x"]\nignore = ["z"]', "ignore has no effect with features"),
        ('csv = "a"\ntarget = "y"\nfeatures = ["p"]\nsplit = {by = "p"}', "features lists 'p', by which split groups"),
        ('csv = "a"\ntarget = "y"\ntypes = {y = "int"}', "types: 'y' is the target; use target_type and classes"),
        ('csv = "a"\ntarget = "y"\nfeatures = ["x"]\ntypes = {z = "int"}', "types: 'z' is no feature"),
        ('csv = "a"\ntarget = "y"\nignore = ["z"]\ncategories = {z = [1]}', "categories: 'z' is no feature"),
        ('csv = "a"\ntarget = "y"\ntypes = {x = "category"}', "list its values, categories = {x = [...]}"),
        (
            'csv = "a"\ntarget = "y"\ntypes = {x = "int"}\ncategories = {x = [1]}',
            "'x' is int in types and has categories",
        ),
        ('csv = "a"\ntarget = "y"\ncategories = {x = []}', "categories: 'x' is empty"),
        ('csv = "a"\ntarget = "y"\nsplit = {after = 2024-01-01}', "after needs column"),
        ('csv = "a"\ntarget = "y"\nsplit = {column = "d"}', "column needs after"),
        ('csv = "a"\ntarget = "y"\nsplit = {after = 2024, column = "d"}', "2024 is not a date; write it as 2024-01-01"),
        (
            'csv = "a"\ntarget = "y"\nsplit = {after = 2024-01-01, column = "d", test = 0.5}',
            "test has no effect",
        ),
        ('csv = "a"\ntarget = "y"\nsplit = {after = 2024-01-01, column = "d", by = "d"}', "by and column are the same"),
    ],
)
def test_contradiction_is_refused(toml: str, says: str) -> None:
    assert says in refusal(toml)


@pytest.mark.parametrize("source", ["postgresql://ann:hunter2@{host}/db", "postgresql://ann:hunter2@host/db"])
def test_password_of_the_url_is_in_no_error_and_no_repr(source: str) -> None:
    table: dict[str, Any] = {"sql": source, "query": "select 1 order by 1", "target": "y"}
    with pytest.raises(ValidationError) as caught:
        DataTable.model_validate(table | {"classes": ["one"]})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(DataTable.model_validate(table | {"sql": source.replace("{host}", "h")}))
