"""Who may do what: every cell of the table in the docs, against a gate and a control end that run as processes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hansa.controlclient import Unanswered
from hansa.errors import RunFailed, UserError
from hansa.roles import Role
from server.launch import read_launch
from server.roles import ACTS
from server.store import State
from server.verbs import VERBS

if TYPE_CHECKING:
    from tests.control.conftest import Heart

WHO = {"researcher": "ann", "auditor": "bob", "administrator": "eve", "site": "boston", "nobody": None}
PAGE = Path(__file__).parents[2] / "docs" / "operate-a-server.md"
TABLE = PAGE.read_text().partition("| act |")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in f"| act |{TABLE}".splitlines() if line[:2] == "| "]
ROLES = ROWS[0][1:]
MAY = {verb: [role for role, cell in zip(ROLES, cells, strict=True) if cell] for verb, *cells in ROWS[1:]}
OWN = {(verb, role) for verb, *cells in ROWS[1:] for role, cell in zip(ROLES, cells, strict=True) if cell == "own runs"}
BODY: dict[str, dict[str, Any]] = {
    "logs": {"run": "table"},
    "run": {"run": "new", "files": {}},
    "resume": {"run": "table"},
    "stop": {"run": "table"},
    "fetch": {"run": "table"},
    "roster": {"edition": 1},
}


def test_the_table_of_the_docs_is_the_code_s_and_each_act_is_done_by_somebody() -> None:
    assert {(verb, role) for verb, act in ACTS.items() for role in act.own} == OWN
    assert {verb: sorted(act.who) for verb, act in ACTS.items()} == {verb: sorted(who) for verb, who in MAY.items()}
    assert ACTS.keys() == VERBS.keys()
    assert {role.value for role in Role} == WHO.keys()


@pytest.fixture(scope="module")
def heart(processes: "Heart") -> "Heart":
    processes.run("table", "ann")
    return processes


@pytest.mark.parametrize("verb", MAY)
@pytest.mark.parametrize("role", WHO)
def test_each_role_does_what_the_table_gives_it_and_nothing_else(heart: "Heart", role: str, verb: str) -> None:
    before = len(heart.acts())
    error: Exception | None = None
    try:
        heart.ask(WHO[role], verb, BODY.get(verb))
    except (UserError, RunFailed) as refusal:
        error = refusal
    assert not isinstance(error, Unanswered)
    noted = heart.acts()[before:]
    if role == "nobody" and role not in MAY[verb]:
        assert "show a certificate" in str(error)
        assert noted == []  # it did not pass the gate: nobody can fill the record
        return
    (line,) = noted
    assert (line["role"], line["name"], line["verb"]) == (role, WHO[role] or "", verb)
    if role in MAY[verb]:
        assert line["reason"] != "role"
    else:
        assert (line["outcome"], line["reason"], line["subject"]) == ("refused", "role", "")
        assert f"may not {verb}" in str(error)


@pytest.mark.parametrize("verb", ["resume", "stop", "fetch"])
def test_a_run_is_its_researcher_s(heart: "Heart", verb: str) -> None:
    with pytest.raises(UserError, match="is not yours"):
        heart.ask("amy", verb, {"run": "table"})
    line = heart.acts()[-1]
    assert (line["name"], line["subject"], line["outcome"], line["reason"]) == ("amy", "table", "refused", "not_own")


@pytest.mark.parametrize("verb", ["resume", "stop", "fetch"])
def test_a_run_that_was_started_at_the_server_is_no_researcher_s(heart: "Heart", verb: str) -> None:
    if read_launch(heart.server / "runs" / "local") is None:
        heart.run("local", None)
    with pytest.raises(UserError, match="is not yours"):
        heart.ask("ann", verb, {"run": "local"})


def test_an_administrator_stops_what_a_researcher_has_started(heart: "Heart") -> None:
    heart.run("stopped", "ann", State.RUNNING)
    said = heart.ask("eve", "stop", {"run": "stopped"})
    assert said[-1] == "run stopped is interrupted"
    with pytest.raises(UserError, match="no server runs on it"):  # it may: there is only no SuperLink in this test
        heart.ask("ann", "resume", {"run": "stopped"})
    assert [line["outcome"] for line in heart.acts()[-2:]] == ["allowed", "allowed"]


def test_the_newest_run_to_resume_is_one_s_own(heart: "Heart") -> None:
    with pytest.raises(UserError, match="no run of yours was interrupted"):
        heart.ask("amy", "resume")
    heart.run("amys", "amy", State.FAILED)
    heart.run("anns", "ann", State.FAILED)
    with pytest.raises(UserError, match="no server runs on it"):
        heart.ask("amy", "resume")
    assert (heart.acts()[-1]["subject"], heart.acts()[-1]["outcome"]) == ("amys", "allowed")
