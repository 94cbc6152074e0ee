"""What a site agrees to: only what its site.toml says, and only the bytes that were digested are run."""

import subprocess
import sys
from pathlib import Path

import pytest

from clients.policy import LINES, Reason, Refused, admit, check_protection
from clients.sitefile import AppsTable, PolicyTable
from hansa.appfiles import app_digest, app_files


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / "models").mkdir(parents=True)
    (folder / "task.py").write_text("import models.net\nprint(models.net.WHO)\n")
    (folder / "models" / "net.py").write_text("WHO = 'the reviewed source'\n")
    return folder


def allowing(app: Path) -> AppsTable:
    return AppsTable(allowed=(app_digest(app_files(app)),))


def test_an_app_that_is_allowed_is_copied_as_it_is(app: Path, tmp_path: Path) -> None:
    assert admit(app, allowing(app), tmp_path / "mine") == app_digest(app_files(app))
    assert app_files(tmp_path / "mine") == app_files(app)


@pytest.mark.parametrize("allowed", [(), (f"sha256:{'0' * 64}",)])
def test_an_app_that_is_not_named_is_refused(app: Path, tmp_path: Path, allowed: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as raised:
        admit(app, AppsTable(allowed=allowed), tmp_path / "mine")
    assert raised.value.code == "app_not_allowed"
    assert raised.value.detail == f"{app_digest(app_files(app))} is not in [apps] allowed"
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_changed_app_is_refused(app: Path, tmp_path: Path, change: str) -> None:
    apps = allowing(app)
    if change == "edit":
        (app / "task.py").write_text("import models.net \nprint(models.net.WHO)\n")
    elif change == "add":
        (app / "models" / "__init__.py").write_text("")
    else:
        (app / "models" / "net.py").unlink()
    with pytest.raises(Refused):
        admit(app, apps, tmp_path / "mine")


@pytest.mark.parametrize("broken", ["no such folder", "no files", "no TOML"])
def test_what_has_no_digest_is_refused(tmp_path: Path, broken: str) -> None:
    if broken != "no such folder":
        (tmp_path / "app").mkdir()
    if broken == "no TOML":
        (tmp_path / "app" / "pyproject.toml").write_text("=")
    with pytest.raises(Refused) as raised:
        admit(tmp_path / "app", AppsTable(), tmp_path / "mine")
    assert raised.value.code is Reason.APP


def run(folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-B", "task.py"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_what_python_prefers_to_a_source_is_not_run(app: Path, tmp_path: Path) -> None:
    """A compiled module that nobody reviewed, delivered beside the source, has no part in the digest. Python would
    run it; it is not copied."""
    apps, net = allowing(app), app / "models" / "net.py"
    compile_it = "from py_compile import *; import sys; compile(sys.argv[1], None, None, True, -1, "
    compile_it += "PycInvalidationMode.UNCHECKED_HASH)"
    reviewed = net.read_text()
    net.write_text("WHO = 'something else'\n")
    subprocess.run([sys.executable, "-c", compile_it, str(net)], check=True)
    net.write_text(reviewed)
    admit(app, apps, tmp_path / "mine")
    assert run(app) == "something else\n"
    assert run(tmp_path / "mine") == "the reviewed source\n"


def test_nothing_of_an_earlier_copy_stays(app: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "old.py").write_text("")
    admit(app, allowing(app), tmp_path / "mine")
    assert not (tmp_path / "mine" / "old.py").exists()


def test_unprotected_updates_leave_only_with_the_site_s_own_word() -> None:
    with pytest.raises(Refused) as raised:
        check_protection(PolicyTable(), secure_aggregation=False)
    assert raised.value.code == "unprotected_not_allowed"
    check_protection(PolicyTable(allow_unprotected=True), secure_aggregation=False)
    check_protection(PolicyTable(), secure_aggregation=True)


def test_what_leaves_the_site_is_a_fixed_line_for_each_code() -> None:
    for code in Reason:
        assert str(Refused(code, "/home/clinic/secret")) == LINES[code]
        assert "\n" not in LINES[code]
