"""Which node of a site a run takes: none that another has, and no two runs wait for each other."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.launch import Launch, write_launch
from server.nodes import Holding, Nodes, choose, forget, holdings, in_words, read_holding

SITES = ("amber", "beryl", "coral")
ALL = {"amber": [1, 2], "beryl": [3, 4]}


def first(nodes: Mapping[str, int], lacks: tuple[str, ...] = (), turn: int = 1) -> dict[str, Holding]:
    return {"first": Holding(turn, nodes, lacks)}


@pytest.mark.parametrize(
    ("before", "others", "node", "busy"),
    [
        ({}, {}, 1, ()),
        ({"amber": 2}, {}, 2, ()),  # the one that it had
        ({"amber": 9}, {}, 1, ()),  # which is gone
        ({}, first({"amber": 1}), 2, ()),
        ({"amber": 1}, first({"amber": 1}), 2, ()),
        ({}, first({"amber": 1}) | {"second": Holding(2, {"amber": 2})}, None, ("first", "second")),
        ({}, first({}, ("amber",)), 1, ()),  # there is one more than the run before needs
        ({}, first({"amber": 1}) | {"second": Holding(2, {}, ("amber",))}, None, ("first", "second")),
        ({}, first({"amber": 1}) | {"later": Holding(9, {}, ("amber",))}, 2, ()),
        ({}, first({"beryl": 3}), 1, ()),
    ],
)
def test_a_node_is_taken_that_is_free_and_that_nobody_before_needs(
    before: Mapping[str, int], others: Mapping[str, Holding], node: int | None, busy: tuple[str, ...]
) -> None:
    chosen = choose(Holding(5, before, ("amber",)), ALL, others)
    assert chosen.nodes == ({} if node is None else {"amber": node})
    assert {site: tuple(runs) for site, runs in chosen.busy.items()} == ({"amber": busy} if busy else {})


def test_a_site_that_cannot_be_reached_is_not_busy() -> None:
    chosen = choose(Holding(5, {}, ("amber",)), {}, first({"amber": 1}))
    assert (chosen.nodes, chosen.busy) == ({}, {})


def begin(runs: Path, name: str) -> Nodes:
    (runs / name).mkdir(parents=True)
    write_launch(runs / name, Launch(1, 1))
    return Nodes(runs / name)


def test_a_run_that_is_over_holds_nothing_and_one_whose_process_died_holds_on(tmp_path: Path) -> None:
    one, two = begin(tmp_path, "one"), begin(tmp_path, "two")
    assert one.look([], ["amber"], {"amber": [1]}).nodes == {"amber": 1}
    assert two.look([], ["amber"], {"amber": [1]}).busy == {"amber": ["one"]}
    assert dict(holdings(tmp_path))["one"] == Holding(1, {"amber": 1}, [])
    again = Nodes(tmp_path / "one")  # the next start: its session has not come back yet
    assert again.look([], ["amber"], {"amber": [1]}).nodes == {"amber": 1}
    write_launch(tmp_path / "one", Launch(1, 1, wanted=False))
    assert two.look([], ["amber"], {"amber": [1]}).nodes == {"amber": 1}
    two.release()
    assert dict(holdings(tmp_path)) == {}


def test_what_a_run_has_let_go_is_free_and_a_note_is_written_when_something_changes(tmp_path: Path) -> None:
    one, two = begin(tmp_path, "one"), begin(tmp_path, "two")
    one.look([], ["amber"], {"amber": [1]})
    written = (tmp_path / "one" / "nodes.json").stat().st_ino
    one.look(["amber"], [], {"amber": [1]})
    assert (tmp_path / "one" / "nodes.json").stat().st_ino == written
    one.look([], [], {"amber": [1]})  # the site has declined
    assert two.look([], ["amber"], {"amber": [1]}).nodes == {"amber": 1}


def test_a_run_that_is_begun_again_has_a_new_turn(tmp_path: Path) -> None:
    """It may lack what a later one has taken meanwhile, which then must not wait for it."""
    begin(tmp_path, "one").look([], ["amber"], {})
    begin(tmp_path, "two").look([], ["amber"], {})
    forget(tmp_path / "one")
    Nodes(tmp_path / "one").look([], ["amber"], {})
    turns = {run: read_holding(tmp_path / run) for run in ("one", "two")}
    assert {run: held.turn for run, held in turns.items() if held} == {"one": 3, "two": 2}


@given(st.data())
def test_whatever_the_order_no_node_is_held_twice_and_each_run_gets_all_its_sites_in_the_end(
    data: st.DataObject,
) -> None:
    """Runs look in any order while nodes come and go; when all are there, whoever has all its sites ends."""
    nodes = {site: [10 * n + m for m in range(data.draw(st.integers(1, 2)))] for n, site in enumerate(SITES)}
    names, notes = [f"run{n}" for n in range(data.draw(st.integers(1, 4)))], dict[str, Holding]()
    left = set(names)

    def look(run: str, online: Mapping[str, list[int]]) -> None:
        others = {name: note for name, note in notes.items() if name != run}
        before = notes.get(run) or Holding(1 + max((note.turn for note in others.values()), default=0))
        lacks = [site for site in SITES if site not in before.nodes]
        chosen = choose(Holding(before.turn, before.nodes, lacks), online, others)
        held = {**before.nodes, **chosen.nodes}
        notes[run] = Holding(before.turn, held, [site for site in lacks if site not in held])
        taken = [node for note in notes.values() for node in note.nodes.values()]
        assert len(taken) == len(set(taken))
        if not notes[run].lacks:
            left.discard(run)

    for _ in range(data.draw(st.integers(0, 20))):
        online = {site: data.draw(st.lists(st.sampled_from(own), unique=True)) for site, own in nodes.items()}
        if left:
            look(data.draw(st.sampled_from(sorted(left))), online)
    for _ in names:
        for run in names:
            if run in left:
                look(run, nodes)
        for run in names:  # whoever has all its sites comes to its end
            if run not in left:
                notes.pop(run, None)
    assert left == set()


def test_runs_in_words() -> None:
    assert [in_words(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["run a", "runs a and b", "runs a, b and c"]
