"""A class from a file of the user's."""

import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.errors import UserError
from hansa.task import Task
from hansa.taskfile import load_class

TASK = "from hansa import Task\n\nclass Heart(Task):\n    word = 'first'\n"


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    modules = dict(sys.modules)
    yield
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def problem(spec: str, folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_class(spec, folder, Task, "task")
    (line,) = raised.value.problems
    return line


def test_the_class_is_found(tmp_path: Path) -> None:
    write(tmp_path, task=TASK)
    heart = load_class("task.py:Heart", tmp_path, Task, "task")
    assert issubclass(heart, Task)
    assert heart.__name__ == "Heart"


def test_a_path_may_lead_into_a_folder_or_be_absolute(tmp_path: Path) -> None:
    write(tmp_path / "tasks", task=TASK)
    relative = load_class("tasks/task.py:Heart", tmp_path, Task, "task")
    assert load_class(f"{tmp_path}/tasks/task.py:Heart", Path(), Task, "task") is relative


def test_the_same_file_gives_the_same_class_and_an_edited_one_a_new_class(tmp_path: Path) -> None:
    """Even when size and time of the file are those of before, by which Python takes a cached file for new."""
    write(tmp_path, task=TASK)
    first = load_class("task.py:Heart", tmp_path, Task, "task")
    assert load_class("task.py:Heart", tmp_path, Task, "task") is first
    write(tmp_path, task=TASK.replace("first", "other"))
    assert vars(load_class("task.py:Heart", tmp_path, Task, "task"))["word"] == "other"
    assert vars(first)["word"] == "first"


def test_an_object_of_it_can_be_pickled(tmp_path: Path) -> None:
    write(tmp_path, task=TASK)
    heart = load_class("task.py:Heart", tmp_path, Task, "task")
    assert type(pickle.loads(pickle.dumps(heart()))) is heart


def test_files_beside_it_can_be_imported_while_it_loads(tmp_path: Path) -> None:
    path = list(sys.path)
    write(tmp_path, task=TASK + "    from net_beside import width\n", net_beside="width = 8\n")
    assert vars(load_class("task.py:Heart", tmp_path, Task, "task"))["width"] == 8
    assert sys.path == path


def test_two_folders_with_a_file_of_one_name_each_get_their_own(tmp_path: Path) -> None:
    for folder, width in (("a", 8), ("b", 16)):
        write(tmp_path / folder, task=TASK + "    from net import width\n", net=f"width = {width}\n")
    widths = [vars(load_class("task.py:Heart", tmp_path / f, Task, "task"))["width"] for f in ("a", "b")]
    assert widths == [8, 16]


def test_a_package_beside_it_is_each_folder_s_own(tmp_path: Path) -> None:
    for folder, width in (("a", 8), ("b", 16)):
        write(tmp_path / folder, task=TASK + "    from nets.deep import width\n")
        write(tmp_path / folder / "nets", __init__="", deep=f"width = {width}\n")
    widths = [vars(load_class("task.py:Heart", tmp_path / f, Task, "task"))["width"] for f in ("a", "b")]
    assert widths == [8, 16]


def test_a_file_named_like_a_library_does_not_take_its_place(tmp_path: Path) -> None:
    write(tmp_path, task=TASK, random="")
    load_class("task.py:Heart", tmp_path, Task, "task")
    assert sys.modules["random"] is random


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, task=TASK, conftest="")
    assert problem("tsk.py:Heart", tmp_path) == f'task: no file "tsk.py" in {tmp_path}; did you mean task.py?'


def test_a_missing_file_in_an_empty_or_missing_folder(tmp_path: Path) -> None:
    line = f'task: no file "task.py" in {tmp_path}; there is no Python file in it'
    assert problem("task.py:Heart", tmp_path) == line
    assert problem("gone/task.py:Heart", tmp_path) == line.replace('"task.py"', '"gone/task.py"')


def test_a_missing_class_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, task=TASK)
    assert problem("task.py:Hart", tmp_path) == "task: task.py has no class Hart; did you mean Heart?"


def test_a_file_without_a_class_says_what_to_write(tmp_path: Path) -> None:
    write(tmp_path, task="from hansa import Task\n")
    assert problem("task.py:Heart", tmp_path) == "task: task.py has no class Heart; write class Heart(Task)"


@pytest.mark.parametrize("text", ["class Heart:\n    pass\n", "Heart = 3\n", "from hansa import Task as Heart\n"])
def test_what_is_no_task_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, task=text)
    assert problem("task.py:Heart", tmp_path) == "task: Heart in task.py is not a Task; write class Heart(Task)"


@pytest.mark.parametrize("spec", ["task.py", "Heart", "task:Heart", "task.py:", "task.py:1", "task.py:A.b", ""])
def test_a_name_of_another_form_is_refused(tmp_path: Path, spec: str) -> None:
    expected = f'task: "{spec}" is not of the form file.py:Class, e.g. task.py:Heart'
    assert problem(spec, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\nimport no_such_module\n", "task.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n\n1 / 0\n", "task.py:3: ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError('a\\nb')\nf()\n", "task.py:2: KeyError: 'a\\nb'"),
        ("class Heart\n    pass\n", "task.py:1: SyntaxError: expected ':' (task.py, line 1)"),
        ("import json\njson.loads('')\n", "task.py:2: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("import sys\nsys.exit(3)\n", "task.py:2: SystemExit: 3"),
        ("\n\nimport broken_beside\n", "broken_beside.py:2: NameError: name 'oops' is not defined"),
    ],
)
def test_a_file_that_fails_is_one_line_with_the_user_s_own_line(tmp_path: Path, text: str, line: str) -> None:
    """The innermost line of the user's files, not one of a library that they called."""
    path, modules = list(sys.path), set(sys.modules)
    write(tmp_path, task=text, broken_beside="\noops\n")
    assert problem("task.py:Heart", tmp_path) == f"task: {line}"
    assert sys.path == path
    assert not any(name.startswith("task_") for name in sys.modules.keys() - modules)


def test_the_cause_is_kept(tmp_path: Path) -> None:
    write(tmp_path, task="1 / 0\n")
    with pytest.raises(UserError) as raised:
        load_class("task.py:Heart", tmp_path, Task, "task")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
