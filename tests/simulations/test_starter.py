"""`hansa init`: what it writes is accepted as it is, and what it makes of a CSV is what the CSV says."""

import csv
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.cli.config_utils import load_and_validate
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.bounds import BoundsTable
from clients.datatable import DataTable
from clients.policy import check_federation
from hansa.appfiles import app_digest, app_files
from hansa.cli import main
from hansa.config import load
from hansa.errors import UserError
from hansa.metrics import total, value
from hansa.tables import A_NAME
from server.appcheck import check_app
from simulations.configured import federation_of
from simulations.starter.proposal import propose
from simulations.starter.write import init


def rows(n: int = 60, **columns: Any) -> pd.DataFrame:
    random = np.random.default_rng(0)
    x = random.normal(size=n).round(3)
    return pd.DataFrame({"x": x, **columns, "ill": np.where(x > 0, "yes", "no")})


def write(folder: Path, frame: pd.DataFrame, **options: Any) -> Path:
    path = folder / "own.csv"
    frame.to_csv(path, index=False, **options)
    return path


def inputs(app: Path) -> int:
    """The number of inputs that task.py says."""
    found = re.search(r"(?m)^INPUTS = (\d+)$", (app / "task.py").read_text())
    assert found
    return int(found[1])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_runs_as_it_is_and_learns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "heart"]) == 0
    assert capsys.readouterr().out == "written: heart; next: cd heart && hansa simulate\n"
    assert sorted(path.name for path in (here / "heart").iterdir()) == [
        "README.md",
        "data",
        "federation.toml",
        "pyproject.toml",
        "task.py",
    ]
    federation = federation_of(load(here / "heart" / "federation.toml"))
    assert (federation.name, sorted(federation.sources)) == ("heart", ["boston", "lyon", "osaka"])
    auc = value(total(federation.run(here / "runs", "r").test.values())["auc"])
    assert auc is not None
    assert auc > 0.9


def test_flower_hansa_s_server_and_a_site_take_it_as_it_is(here: Path) -> None:
    init(here / "heart", None, None, None, print)
    app = here / "heart"
    check_app(app_files(app), app)
    config, _ = load_and_validate(app / "pyproject.toml", check_module=False)
    assert config["project"]["name"] == "heart"
    check_federation(app, BoundsTable(), own_data=True)
    before = app_digest(app_files(app))
    (app / "federation.toml").write_text((app / "federation.toml").read_text().replace("lr = 0.1", "lr = 0.2"))
    assert app_digest(app_files(app)) == before


# Columns of all sorts: what each is taken for.
def tricky() -> pd.DataFrame:
    n, random = 60, np.random.default_rng(1)
    return rows(
        n,
        **{
            "patient id": np.repeat(np.arange(n // 3), 3),
            "row": np.arange(n) + 7,
            'blood "pressure", mmHg': np.where(np.arange(n) == 5, "?", random.integers(90, 180, n).astype(str)),
            "größe=[m]": np.where(np.arange(n) == 9, np.nan, random.normal(1.7, 0.1, n)),
            "sex": random.choice(["f", "m"], n),
            "smoker": random.choice(["TRUE", "FALSE", ""], n),
            "zone": random.choice(["a\\b", 'c"d', "ü", "1"], n),
            "admitted": pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d"),
            "note": [f"text {i}" for i in range(n)],
            "always": "x",
            "never": np.nan,
            "far": np.where(np.arange(n) == 3, 1e300, 1.0),
        },
    )


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_each_column_is_taken_for_what_it_is(here: Path, separator: str) -> None:
    path = write(here, tricky(), sep=separator)
    found = propose(path, None)
    assert (found.target, found.classes, found.by, found.na) == ("ill", ("no", "yes"), "patient id", ("?",))
    assert found.features == ["x", 'blood "pressure", mmHg', "größe=[m]", "sex", "smoker", "zone"]
    assert found.categories == {"sex": ("f", "m"), "smoker": ("FALSE", "TRUE"), "zone": ("1", "a\\b", 'c"d', "ü")}
    assert found.left_out == {
        "row": "row numbers",
        "admitted": "dates",
        "note": "text, 60 different ones",
        "always": "one value only",
        "never": "no values",
        "far": "infinite, or beyond float32",
    }
    init(here / "own", path, None, None, print)
    data = load(here / "own" / "federation.toml").table("data", DataTable)
    assert (data.features, data.categories) == (tuple(found.features), found.categories)
    assert (data.csv, data.missing, data.split.by) == ("../own.csv", "mean", "patient id")
    assert inputs(here / "own") == 3 + 2 + 2 + 4
    assert main(["simulate", "own/federation.toml", "--set", "rounds.rounds=1"]) == 0


@pytest.mark.parametrize(
    ("target", "classes", "outputs"),
    [
        (["sick", "well", "dead"] * 20, '["dead", "sick", "well"]', 3),
        ([True, False] * 30, '["False", "True"]', 1),
        ([2, 1] * 30, "[1, 2]", 1),
        ([0.0, 1.0, 4.0] * 20, "[0, 1, 4]", 3),
    ],
)
def test_a_target_of_few_values_is_a_class(here: Path, target: list[Any], classes: str, outputs: int) -> None:
    path = write(here, rows().drop(columns="ill").assign(outcome=target))
    init(here / "own", path, None, None, print)
    assert f"\nclasses = {classes}\n" in (here / "own" / "federation.toml").read_text()
    assert f"\nOUTPUTS = {outputs}\n" in (here / "own" / "task.py").read_text()
    assert main(["simulate", "own/federation.toml", "--set", "rounds.rounds=1"]) == 0


def test_a_target_of_many_numbers_is_a_number_in_its_own_unit(here: Path) -> None:
    """y = 50,000 x + 200,000: the mean error after training is far below the deviation, in whatever unit."""
    frame = rows(200).drop(columns="ill").assign(price=lambda f: 50_000 * f["x"] + 200_000)
    init(here / "own", write(here, frame), None, None, print)
    federation = federation_of(load(here / "own" / "federation.toml"))
    mae = value(total(federation.run(here / "runs", "r").test.values())["mae"])
    assert mae is not None
    assert mae < frame["price"].std() / 4


def test_the_rows_are_dealt_to_as_many_sites_as_wanted(here: Path) -> None:
    init(here / "own", write(here, rows()), "ill", 5, print)
    federation = federation_of(load(here / "own" / "federation.toml"))
    assert list(federation.sources) == [f"site-0{i}" for i in range(1, 6)]


def test_a_model_that_does_not_take_the_rows_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who changes the columns forgets the model."""
    init(here / "heart", None, None, None, print)
    task = here / "heart" / "task.py"
    task.write_text(task.read_text().replace("INPUTS = 7", "INPUTS = 9"))
    for options in (["--dry-run"], []):
        assert main(["simulate", "heart/federation.toml", *options]) == 2
        line = (
            "error: task Predict: its model and loss do not take the rows, inputs of shape [7]: mat1 and mat2 shapes "
        )
        assert re.fullmatch(re.escape(line) + r"[^\n]*; fit the model to the data, [^\n]*\n", capsys.readouterr().err)
    assert not (here / "heart" / "runs").exists()


MISTAKES: list[tuple[list[str], str]] = [
    (["own", "--csv", "gone.csv"], "--csv gone.csv: there is no such file"),
    (["own", "--csv", "own.csv", "--target", "il"], "--target il: own.csv has no such column; did you mean ill?"),
    (["own", "--csv", "own.csv", "--target", "qqq"], "--target qqq: own.csv has no such column (columns: x, ill)"),
    (
        ["own", "--csv", "own.csv", "--sites", "7"],
        "--sites 7: own.csv has 60 rows, and a site gets 10 or more; set --sites to 6 or fewer",
    ),
    (["own", "--csv", "own.csv", "--sites", "0"], "--sites 0: give 1 or more"),
    (["own", "--target", "ill"], "--target is about the rows of --csv; give that as well"),
    (["own", "--sites", "3"], "--sites is about the rows of --csv; give that as well"),
    (["there"], "there is there already; remove it, or choose another name"),
    (
        ["-own-"],
        f"-own-: the name of an app is {A_NAME}",
    ),
]


@pytest.mark.parametrize(("arguments", "line"), MISTAKES, ids=[" ".join(one) for one, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_is_written(
    here: Path, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, rows())
    (here / "there").mkdir()
    assert main(["init", *arguments[1:], "--", arguments[0]]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert sorted(os.listdir(here)) == ["own.csv", "there"]


WRONG: list[tuple[pd.DataFrame, str]] = [
    (rows(ill2=1)[["x", "ill2"]], "own.csv: column 'ill2' has one value only, so there is nothing to predict; "),
    (rows()[["ill"]], "own.csv: no column is left to learn from; left out: "),
    (
        rows(code=[f"c{i}" for i in range(60)])[["code", "ill"]],
        "no column is left to learn from; left out: code (text, 60",
    ),
    (rows().assign(ill=["", *["yes"] * 59]), "own.csv: column 'ill' is to be predicted, but row 1 has no value"),
    (rows(150, y=[f"c{i}" for i in range(150)]), "own.csv: column 'y' has 150 different texts, too many to predict"),
    (rows(y=[np.inf, *np.linspace(0, 1, 59)]), "own.csv: column 'y' is to be predicted, but has infinite values"),
    (rows().iloc[:0], "own.csv: there are no rows"),
    (rows(8), "--sites 3: own.csv has 8 rows, and a site gets 10 or more; give more rows"),
]


@pytest.mark.parametrize(("frame", "line"), WRONG, ids=[line for _, line in WRONG])
def test_a_csv_that_will_not_do_is_one_line(here: Path, frame: pd.DataFrame, line: str) -> None:
    write(here, frame)
    with pytest.raises(UserError) as raised:
        init(Path("own"), Path("own.csv"), None, None, print)
    assert len(raised.value.problems) == 1
    assert line in raised.value.problems[0]
    assert sorted(os.listdir(here)) == ["own.csv"]


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).map(str.strip).filter(bool)


@settings(max_examples=12)
@given(
    names=st.lists(TEXTS, min_size=3, max_size=3, unique=True),
    values=st.lists(TEXTS, min_size=2, max_size=4, unique=True),
)
def test_whatever_the_names_and_values_are_the_table_says_them(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    frame = rows().set_axis(["x", "ill"], axis=1)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([f"a{names[0]}", f"b{names[1]}", f"c{names[2]}"])
    writer.writerows(
        [x, f"v{values[i % len(values)]}", ill] for i, (x, ill) in enumerate(frame.itertuples(index=False))
    )
    (folder / "own.csv").write_text(text.getvalue())
    found = propose(folder / "own.csv", f"c{names[2]}")
    init(folder / "own", folder / "own.csv", f"c{names[2]}", None, lambda line: None)
    data = load(folder / "own" / "federation.toml").table("data", DataTable)
    assert data.target == f"c{names[2]}"
    assert data.features == tuple(found.features)
    assert data.categories == found.categories
