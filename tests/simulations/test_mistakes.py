"""A user's mistake in a simulation: one line that says what, where and how to mend it, exit code 2, no traceback."""

from pathlib import Path
from typing import Any

import pytest

from hansa.cli import FAILED, USER_ERROR, main
from hansa.errors import UserError
from hansa.task import Task
from simulations.api import simulate
from simulations.engines.setting import as_file

HEAD = '[federation]\nname = "x"\ntask = "task.py:T"\n[rounds]\nrounds = 2\n'
ROWS = '[data]\ncsv = "rows.csv"\ntarget = "y"\n[simulation]\npartition = {name = "iid", sites = 2}\n'
CSV = "a,b,y\n" + "".join(f"{i % 7},{i * 0.1},{i % 2}\n" for i in range(20))
CODE = """
import torch
from torch import nn
import hansa
class Rows:
    def __len__(self): return 9
    def __getitem__(self, i):
        if i == 3: raise OSError("row gone")
        return torch.zeros(2), i % 2
class T(hansa.Task):
    def model(self): return nn.Linear(2, 1)
"""


def hansa(folder: Path, text: str = HEAD + ROWS, code: str = "", csv: str = CSV, *more: str) -> int:
    (folder / "federation.toml").write_text(text)
    (folder / "task.py").write_text(CODE + "".join(f"    {line}\n" for line in code.splitlines()))
    (folder / "rows.csv").write_text(csv)
    return main(["simulate", str(folder / "federation.toml"), *more])


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error", "failed"))]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def model(self): return None", "task T: model gave NoneType; return a torch.nn.Module, e.g. nn.Linear(4, 1)"),
        (
            "def model(self): return 1 / 0",
            "task.py:12, in model: ZeroDivisionError: division by zero; correct it there",
        ),
        (
            "def __init__(self): 1 / 0",
            "task: T() fails: ZeroDivisionError: division by zero; let it be made without arguments",
        ),
        ("def forward(self, m, b): return 3", "task: forward gave int; return two values, output and target"),
        (
            "def loss(self, o, t): return 1.0",
            "task: the loss must be one number, the batch's mean, as a tensor; it is float",
        ),
        (
            "def loss(self, o, t): return o.mean().detach()",
            "task: the loss has no gradient; compute it in torch from the model's output, undetached",
        ),
        (
            "def metrics(self, o, t): return {'n': 3}",
            "task: metric 'n' is int; return (numerator, count), two numbers, or hansa.metrics.roc(...)",
        ),
        (
            "def metrics(self, o, t): return {'n': torch.ones(3)}",
            "task: metric 'n' is a tensor of shape [3]; "
            "return (numerator, count), two numbers, or hansa.metrics.roc(...)",
        ),
        ("def metrics(self, o, t): return None", "task: metrics gave NoneType; return a dict of sums by name"),
        (
            "def train_data(self, site): return None",
            "task: train_data gave NoneType; return a dataset with a length and rows by number",
        ),
        (
            "def train_data(self, site): return [(torch.zeros(2).double(), 0)] * 9",
            "task T, in forward: RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float; "
            "give rows of the model's dtype, e.g. x.float()",
        ),
        ("def train_data(self, site): return Rows()", "task.py:8, in __getitem__: OSError: row gone; correct it there"),
        ("def scheduler(self, o, s): return 3", "task: scheduler gave int; return one of torch's, or None"),
        (
            "valid_fraction = 'a'",
            "site 'site-01': valid_fraction = 'a'; set it in the task to at least 0 and below 1",
        ),
        (
            "def server_data(self): return 3",
            "task: server_data gave int; return a dataset with a length and rows by number",
        ),
    ],
)
def test_a_mistake_in_a_task_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, line: str
) -> None:
    text = HEAD + "[simulation]\nsites = 2\n" if "train_data" in code else HEAD + ROWS
    assert hansa(tmp_path, text, code) == USER_ERROR
    assert said(capsys) == [f"error: {line}"]


def test_an_error_in_a_process_that_loads_rows_is_told_with_the_user_s_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def train_data(self, site): return Rows()\ndef valid_data(self, site): return None"
    text = HEAD + "[training]\nnum_workers = 1\n[simulation]\nsites = 1\n"
    assert hansa(tmp_path, text, code) == USER_ERROR
    assert said(capsys) == ["error: task.py:8, in __getitem__: OSError: row gone; correct it there"]


def test_batch_norm_on_one_row_says_which_key_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "def model(self): return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))"
    assert hansa(tmp_path, HEAD + ROWS + "[training]\nbatch_size = 1\n", code) == USER_ERROR
    (line,) = said(capsys)
    assert line.startswith("error: task T, in forward: ValueError: Expected more than 1 value per channel")
    assert line.endswith("; set [training] drop_last = true and batch_size to 2 or more, for batch norm")


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        (
            "def step(self, state, mean, share): return None",
            "[strategy] S: step gave NoneType; return a ServerState with params of shape [3]",
        ),
        ("def step(self, state, mean, share): return mean['z']", "st.py:3, in step: KeyError: 'z'; correct it there"),
        (
            "def finish(self, run, shared, memory): return None",
            "[strategy]: finish gave NoneType; return two values, the second the memory",
        ),
        (
            "def local_update(self, m, b, c): return None",
            "[strategy]: local_update gave NoneType; return two values, the second the memory",
        ),
        (
            "def parts(self, size, n): return {'delta': Part(size, 'rows')}",
            "[strategy]: a part of 3 floats with weight 'rows'; "
            'give Part a number of floats, and "examples" or "uniform"',
        ),
    ],
)
def test_a_mistake_in_a_strategy_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hook: str, line: str
) -> None:
    (tmp_path / "st.py").write_text(f"from strategies.base import Part, Strategy\nclass S(Strategy):\n    {hook}\n")
    assert hansa(tmp_path, HEAD + ROWS + '[strategy]\nname = "st.py:S"\n') == USER_ERROR
    assert said(capsys) == [f"error: {line}"]


def test_a_step_to_a_model_that_is_not_finite_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = "def step(self, state, mean, share): return replace(state, params=state.params * float('nan'))"
    head = "from dataclasses import replace\nfrom strategies.base import Strategy\n"
    (tmp_path / "st.py").write_text(f"{head}class S(Strategy):\n    {hook}\n")
    assert hansa(tmp_path, HEAD + ROWS + '[strategy]\nname = "st.py:S"\n') == FAILED
    assert said(capsys) == ["failed: none of the 2 rounds counted, nothing was learnt; the warnings say why"]


def test_a_run_that_learnt_nothing_does_not_end_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hansa(tmp_path, code="def loss(self, o, t): return o.sum() * float('nan')") == FAILED
    assert said(capsys) == ["failed: none of the 2 rounds counted, nothing was learnt; the warnings say why"]


@pytest.mark.parametrize("run", ["../elsewhere", "..", ".", "a/b", "x" * 65, "a\nb"])
def test_a_run_s_id_never_leads_out_of_the_folder_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    assert hansa(tmp_path, HEAD + ROWS, "", CSV, f"--run={run}") == USER_ERROR
    (line,) = said(capsys)
    assert line.startswith(f"error: run {run!r}: a run's id must be up to 64 letters")
    assert not list(tmp_path.rglob("checkpoints"))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            f"[training]\nlr = {'[' * 2000}{']' * 2000}",
            "federation.toml: not TOML: brackets stand too deep in one another",
        ),
        ("[training]\nlr = 1e308", "federation.toml [training] lr: must be at most 1e+30; got 1e+308"),
    ],
)
def test_a_wild_value_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, line: str) -> None:
    assert hansa(tmp_path, f"{HEAD}{ROWS}{more}\n") == USER_ERROR
    assert said(capsys) == [f"error: {line}"]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            f"{'9' * 400},1,1",
            f"column 'a', row 21: '{'9' * 400}' is infinite or beyond float32; correct it, or ignore the column",
        ),
        (
            "1,1,-1",
            "column 'y', row 21: '-1' is no class (0, 1, 2, ...); "
            'list the target\'s values in [data] classes, or set target_type = "number"',
        ),
    ],
)
def test_a_wild_row_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, line: str) -> None:
    assert hansa(tmp_path, csv=f"{CSV}{row}\n") == USER_ERROR
    assert said(capsys) == [f"error: {tmp_path}/rows.csv: {line}"]


def test_a_third_class_for_one_output_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hansa(tmp_path, csv=f"{CSV}1,1,5\n1,2,5\n1,3,5\n") == USER_ERROR
    mend = "give the model an output a class, or list the labels in [data] classes"
    assert said(capsys) == [f"error: task: one output is for labels 0 and 1, and there is 5; {mend}"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rounds": 0}, "simulate rounds: must be at least 1; got 0"),
        ({"rounds": "3"}, 'simulate rounds: must be a whole number; got "3"'),
        ({"seed": -1}, "simulate seed: must be at least 0; got -1"),
        ({"threads": 0}, "simulate threads: must be at least 1; got 0"),
        ({"training": {"lr": -1}}, "[training] lr: must be greater than 0; got -1"),
        ({"sites": "ab"}, "simulate sites: must be a number or a list of names; got 'ab'"),
        ({"strategy": "fedavg"}, "simulate strategy: must be an object of a class that is a Strategy; got 'fedavg'"),
    ],
)
def test_a_wrong_argument_of_simulate_is_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as raised:
        simulate(Task(), **({"sites": 2} | arguments))
    assert str(raised.value) == line


@pytest.mark.parametrize("site", ["../x", "..", "/etc", "a/b"])
def test_a_site_s_memory_stays_in_the_folder_of_its_run(tmp_path: Path, site: str) -> None:
    assert (tmp_path / as_file(site)).resolve().parent == tmp_path.resolve()
