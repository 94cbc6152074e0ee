"""What a site agrees to: only what its site.toml says, and only the bytes that were digested are run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.bounds import BoundsTable
from clients.policy import (
    LINES,
    Reason,
    Refused,
    admit,
    check_federation,
    check_plan,
    check_protection,
    check_terms,
    secured,
)
from clients.sitefile import AppsTable, PolicyTable
from hansa.appfiles import app_digest, app_files
from privacy.secagg.ring import Segment
from privacy.secagg.terms import Terms


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


HEAD = '[federation]\nname = "heart"\ntask = "task.py:Heart"\n'


def federation(app: Path, text: str, bounds: BoundsTable | None = None, own_data: bool = True) -> None:
    (app / "federation.toml").write_text(text)
    check_federation(app, bounds or BoundsTable(), own_data)


def refusal(app: Path, text: str, bounds: BoundsTable | None = None, own_data: bool = True) -> Refused:
    with pytest.raises(Refused) as raised:
        federation(app, text, bounds, own_data)
    return raised.value


@pytest.mark.parametrize("name", ["task.py:Heart", "./task.py:Heart", "models/net.py:Heart"])
def test_a_federation_may_choose_among_the_app_s_own_code(app: Path, name: str) -> None:
    federation(app, f'[federation]\ntask = "{name}"\n[strategy]\nname = "{name}"\n')


@pytest.mark.parametrize("key", ["federation.task", "strategy.name", "strategy.inner.name", "plugin.list"])
@pytest.mark.parametrize("name", ["../task.py:Heart", "models/../../x.py:X", "gone.py:X", "test_x.py:X", "ABSOLUTE:X"])
def test_it_may_not_bring_in_code_from_elsewhere(app: Path, key: str, name: str) -> None:
    """What the digest did not cover would run: a file elsewhere on the site's disk, or one that was not digested."""
    for path in (app.parent / "task.py", app.parent / "x.py", app / "test_x.py"):
        path.write_text("")
    name = name.replace("ABSOLUTE", str(app.parent / "task.py"))
    value = f'["{name}"]' if key == "plugin.list" else f'"{name}"'
    refused = refusal(app, f"{key} = {value}\n")
    assert (refused.code, str(refused)) == ("code_not_in_app", LINES[Reason.CODE])


def test_what_a_simulation_uses_is_not_read_at_a_site(app: Path) -> None:
    federation(app, f'{HEAD}[simulation]\ndataset = {{ name = "../mine.py:Rows" }}\n')


@pytest.mark.parametrize("source", ["csv = '/etc/passwd'", "csv = '../../{site}.csv'", "sql = 'sqlite:///x'", ""])
def test_where_rows_are_is_the_site_s_own_word(app: Path, source: str) -> None:
    """A researcher who named the file could train on one that the site never meant to give."""
    text = f"{HEAD}[data]\n{source}\n"
    assert refusal(app, text, own_data=False).code == "no_data_of_its_own"
    federation(app, text, own_data=True)  # which then counts, and this one is not read
    federation(app, HEAD, own_data=False)  # the app's code knows where its rows are


@pytest.mark.parametrize("text", [None, "= 1", "\xff", "a = " + "[" * 50_000])
def test_a_federation_that_cannot_be_read_is_refused(app: Path, text: str | None) -> None:
    if text is not None:
        (app / "federation.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(Refused) as raised:
        check_federation(app, BoundsTable(), own_data=True)
    assert raised.value.code is Reason.FEDERATION


def test_out_of_bounds_names_the_key_and_no_value(app: Path) -> None:
    bounds = BoundsTable.model_validate({"training.lr": {"max": 0.25}})
    refused = refusal(app, "[training]\nlr = 0.75\n", bounds)
    assert refused.code == "out_of_bounds"
    assert str(refused) == f"training.lr: {LINES[Reason.BOUNDS]}"
    assert not {"0.75", "0.25"} & {*str(refused).split(), *refused.detail.split()}
    federation(app, "[training]\nlr = 0.25\n", bounds)


def test_a_plan_is_held_to_the_bounds_whatever_the_file_said() -> None:
    bounds = BoundsTable.model_validate({"training.lr": {"max": 0.25}, "rounds.rounds": {"max": 5}})
    check_plan(bounds, json.dumps({"lr": 0.25, "batch_size": 8}), 5)
    for hyper, round in [('{"lr": 0.3}', 1), ('{"lr": NaN}', 1), ('{"lr": "0.1"}', 1), ('{"lr": null}', 1), ("{}", 6)]:
        with pytest.raises(Refused) as raised:
            check_plan(bounds, hyper, round)
        assert str(raised.value).startswith("rounds.rounds: " if round == 6 else "training.lr: ")


@pytest.mark.parametrize("hyper", ["", "[]", "[" * 200_000])
def test_a_plan_that_makes_no_sense_is_left_to_its_reader(hyper: str) -> None:
    check_plan(BoundsTable.model_validate({"training.lr": {"max": 0.25}}), hyper, 1)


@pytest.mark.parametrize(
    ("privacy", "sites", "on"),
    [
        ("", 3, True),
        ("", 2, False),
        ("secure = true", 2, True),
        ("secure = false", 5, False),
        ('secure = "auto"', 3, True),
    ],
)
def test_federation_toml_says_whether_updates_are_masked(app: Path, privacy: str, sites: int, on: bool) -> None:
    (app / "federation.toml").write_text(f"{HEAD}[privacy]\n{privacy}\n")
    assert secured(app, sites) is on


@pytest.mark.parametrize("privacy", ["[privacy]\nsecure = 7", "privacy = 3", "[privacy]\nsecured = true"])
def test_a_privacy_table_that_cannot_be_read_is_refused(app: Path, privacy: str) -> None:
    (app / "federation.toml").write_text(f"{privacy}\n{HEAD}")
    with pytest.raises(Refused) as raised:
        secured(app, 3)
    assert raised.value.code is Reason.FEDERATION


def terms(sites: int, threshold: int, bits: int = 24, clip: float = 0.5) -> Terms:
    names = tuple(f"site-{number:02}" for number in range(sites))
    parts = (Segment("delta", 10, "uniform", clip, 1),)
    return Terms("run", "train-valid", 1, 1, 1, bytes(32), names, threshold, bytes(32), 1, bits, parts, ())


@pytest.mark.parametrize(
    ("policy", "good", "bad", "code"),
    [
        ({}, terms(3, 3), terms(2, 2), "too_few_sites"),
        ({"min_sites": 5}, terms(7, 5), terms(5, 4), "too_few_sites"),
        ({"allow_two_sites": True}, terms(2, 2), terms(3, 2), "too_few_sites"),
        ({"max_clip": 0.5}, terms(3, 3), terms(3, 3, clip=0.51), "clip_too_large"),
        ({"min_ring_bits": 24}, terms(3, 3), terms(3, 3, bits=20), "ring_too_small"),
    ],
)
def test_no_server_can_lower_a_site_s_floors(policy: dict[str, Any], good: Terms, bad: Terms, code: str) -> None:
    check_terms(PolicyTable(**policy), good)
    with pytest.raises(Refused) as raised:
        check_terms(PolicyTable(**policy), bad)
    assert raised.value.code == code
