"""What a site agrees to: only what its site.toml says, and only the bytes that were digested are run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.bounds import BoundsTable
from clients.planrules import check_plan, check_vectors
from clients.policy import admit, check_federation, check_protection
from clients.refusals import LINES, Reason, Refused
from clients.sitefile import AppsTable, PolicyTable
from clients.sumrules import Said, check_terms, said_by
from hansa.appfiles import app_digest, app_files
from hansa.wire.link_pb2 import Blob, Plan
from privacy.config import PrivacyTable
from privacy.secagg.ring import Segment, most_levels
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
    assert said_by(app).privacy.wants(sites) is on


@pytest.mark.parametrize(
    "privacy",
    ["[privacy]\nsecure = 7", "privacy = 3", "[privacy]\nsecured = true", "[rounds]\nrounds = 0", "[dp]\nclip = 1.0"],
)
def test_a_privacy_table_that_cannot_be_read_is_refused(app: Path, privacy: str) -> None:
    (app / "federation.toml").write_text(f"{privacy}\n{HEAD}")
    with pytest.raises(Refused) as raised:
        said_by(app)
    assert raised.value.code is Reason.FEDERATION


def terms(sites: int, threshold: int, bits: int = 24, clip: float = 0.5) -> Terms:
    names = tuple(f"site-{number:02}" for number in range(sites))
    parts = (Segment("delta", 10, "uniform", clip, most_levels(sites, "uniform", bits)),)
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
    check_terms(PolicyTable(**policy), good, said(good), len(good.sites))
    with pytest.raises(Refused) as raised:
        check_terms(PolicyTable(**policy), bad, said(bad), len(bad.sites))
    assert raised.value.code == code


def said(terms: Terms) -> Said:
    return Said(PrivacyTable(ring_bits=terms.bits, clip=terms.parts[0].bound), 5)


def test_a_sum_over_two_is_for_consortia_of_two() -> None:
    """Of three that allow it, a server that asks them in pairs has each one's update."""
    policy, pair = PolicyTable(allow_two_sites=True), terms(2, 2)
    check_terms(policy, pair, said(pair), 2)
    with pytest.raises(Refused) as raised:
        check_terms(policy, pair, said(pair), 3)
    assert raised.value.code is Reason.SITES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 2}, "max_weight = 2"),
        ({"bits": 32}, "ring_bits = 32"),
        ({"parts": (Segment("delta", 10, "uniform", 0.25, most_levels(4, "uniform", 24)),)}, "bound=0.25"),
        ({"parts": (Segment("delta", 10, "uniform", 0.5, 7),)}, "levels=7"),
        ({"parts": (Segment("other", 10, "uniform", 0.5, 7),)}, "no clip for part 'other'"),
        ({"threshold": 3}, "a threshold of 3 of 4"),
        ({"round": 22}, "round 22 of 5"),
    ],
)
def test_terms_are_those_of_the_app(change: dict[str, Any], words: str) -> None:
    """With weights and bounds of its choice in each round a server finds out who has how many rows."""
    app = Said(PrivacyTable(ring_bits=24, clip={"delta": 0.5}, threshold=4), 5)
    good = terms(4, 4)
    check_terms(PolicyTable(), good, app, 4)
    with pytest.raises(Refused) as raised:
        check_terms(PolicyTable(), replace(good, **change), app, 4)
    assert raised.value.code is Reason.TERMS
    assert words in raised.value.detail


def test_under_differential_privacy_the_largest_public_weight_counts(app: Path) -> None:
    dp = '[dp]\nunit = "record"\nepsilon = 1\ndelta = 1e-5\nclip = 1.0\n'
    for weights, most in (("", 1), ("weights = { a = 3, b = 7 }\n", 7)):
        (app / "federation.toml").write_text(f"{HEAD}[privacy]\nmax_weight = 400\nclip = 0.5\n{dp}{weights}")
        assert said_by(app).privacy.max_weight == most


@pytest.mark.parametrize("hyper", ['{"lr": NaN}', '{"lr": 1e999}', '{"a": {"b": [1, -Infinity]}}'])
def test_hyper_parameters_that_are_not_finite_are_refused(hyper: str) -> None:
    with pytest.raises(Refused) as raised:
        check_plan(BoundsTable(), hyper, 1)
    assert raised.value.code is Reason.PLAN


def test_a_model_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    good, bad = np.ones(3, "<f4"), np.array([1, np.inf, 0], "<f4")
    plan = Plan(vectors=[Blob(name="params", data=good.tobytes()), Blob(name="shared/c", sha256=bytes(32))])
    plan.vectors.add(name="counters", data=b"\xff" * 8)  # whole numbers, whatever they are as floats
    file = tmp_path / "vector"
    file.write_bytes(good.tobytes())
    check_vectors(plan, {"shared/c": file})
    file.write_bytes(bad.tobytes())
    with pytest.raises(Refused) as raised:
        check_vectors(plan, {"shared/c": file})
    assert raised.value.code is Reason.PLAN
    with pytest.raises(Refused):
        check_vectors(Plan(vectors=[Blob(name="params", data=bad.tobytes())]), {})
