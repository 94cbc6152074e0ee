"""Files replaced as one: after a crash at any moment all are old, or all are new."""

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hansa import swap as module
from hansa.roster import sign
from hansa.startup import ROSTER, ROSTER_SIGNATURE, read_roster
from hansa.swap import _next, settle, swap
from server.provision import Founding, provision

OLD, NEW = {"a": b"old a", "b": b"old b"}, {"a": b"new a", "b": b"new b"}


class Crash(BaseException):
    """The machine dies."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("steps", range(12))
def test_a_crash_before_any_step_leaves_the_old_ones_or_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The steps are all that touches the disk: writing, syncing, renaming, removing."""
    swap(tmp_path, OLD)
    left = steps

    def dying(call: object) -> object:
        def step(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            return call(*args, **options)  # type: ignore[operator]

        return step

    with monkeypatch.context() as patch:
        for name in ("write_private", "sync_folder", "write_atomically"):
            patch.setattr(module, name, dying(getattr(module, name)))
        patch.setattr(os, "replace", dying(os.replace))
        try:
            swap(tmp_path, NEW)
        except Crash:
            pass
        else:
            assert steps > 7
    committed = (tmp_path / module.JOURNAL).exists()
    settle(tmp_path)
    assert contents(tmp_path) in (OLD, NEW)
    if committed:
        assert contents(tmp_path) == NEW
    swap(tmp_path, NEW)
    assert contents(tmp_path) == NEW
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", module.LOCK}


def test_what_is_put_in_place_is_for_its_owner_only(tmp_path: Path) -> None:
    swap(tmp_path, NEW)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in NEW} == {0o600}


def test_a_folder_in_which_nothing_was_cut_off_is_left_alone(tmp_path: Path) -> None:
    settle(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_that_replace_the_same_files_at_once_do_not_mix_them(tmp_path: Path) -> None:
    """Ten swaps each by four threads; whoever reads under none of them finds a pair."""

    def work(name: bytes) -> None:
        for number in range(10):
            swap(tmp_path, dict.fromkeys("ab", name + str(number).encode()))

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"w", b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(tmp_path)
    assert found["a"] == found["b"]
    assert found["a"][1:] == b"9"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", module.LOCK}


def test_a_roster_that_is_read_while_it_is_replaced_is_one_of_the_two(tmp_path: Path) -> None:
    """The journal stands, one of the two files has its new name, the other not yet."""
    provision(tmp_path / "alliance", ["bern"], Founding(), datetime.now(UTC))
    server, own = tmp_path / "alliance" / "server", tmp_path / "alliance" / "consortium"
    before = read_roster(server)
    newer = before.model_copy(update={"edition": before.edition + 1}).to_bytes()
    (server / ".swap.json").write_text(json.dumps([ROSTER, ROSTER_SIGNATURE]))
    (server / ROSTER).write_bytes(newer)
    _next(server, ROSTER_SIGNATURE).write_bytes(sign(newer, (own / "roster.key").read_bytes()))
    assert read_roster(server).edition == before.edition + 1
