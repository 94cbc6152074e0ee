"""A site's ledger: what it refuses, and that no crash, damage or other process makes it count too little."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hansa.errors import UserError
from privacy.dp.accounting import epsilon
from privacy.dp.ledger import Ledger, Limit, OverBudget, Subject, ledgers, read_account
from privacy.dp.mechanism import Event

PATIENTS = Subject("heart", "group", "patient_id")
LIMIT = Limit(6.0, 1e-11)  # a delta at which RDP alone answers, which is quick
ONE = Event(4.0, 0.1, 10)


def opened(folder: Path, limit: Limit = LIMIT) -> Ledger:
    return Ledger(folder, PATIENTS, limit, lambda: datetime(2026, 1, 1, tzinfo=UTC))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def restore(folder: Path, kept: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, data in kept.items():
        (folder / name).write_bytes(data)


def test_a_release_is_debited_and_composes_over_all_runs(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for run in ("a", "b"):
        for round in (1, 2):
            ledger.settle(ledger.reserve(run, round, "1", ONE), ONE)
    account = opened(tmp_path).account()
    assert account.cost() == epsilon([ONE] * 4, LIMIT.delta)
    assert account.cost(run="b") == epsilon([ONE] * 2, LIMIT.delta)
    assert account.runs == ["a", "b"]


def test_it_is_on_disk_before_anything_is_released(tmp_path: Path) -> None:
    opened(tmp_path).reserve("a", 1, "1", ONE)
    (path,) = ledgers(tmp_path)
    assert read_account(path).cost() == epsilon([ONE], LIMIT.delta)
    assert path.stat().st_mode & 0o077 == 0


def test_a_refusal_says_what_is_spent_asked_and_allowed_and_changes_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path, Limit(3.0, 1e-5))
    ledger.reserve("a", 1, "1", Event(2.0, 0.2, 30))
    before = files(tmp_path)
    with pytest.raises(OverBudget) as refused:
        ledger.reserve("a", 2, "1", Event(2.0, 0.2, 30))
    assert str(refused.value) == (
        "heart, group by patient_id: epsilon 2.7 is spent and 2.7 asked for, 3.833 together, above this site's limit "
        "of 3 at delta = 1e-05; nothing was released"
    )
    assert files(tmp_path) == before


def test_what_has_no_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OverBudget, match="epsilon 0 is spent and inf asked for"):
        opened(tmp_path).reserve("a", 1, "1", Event(0.0, 0.5, 1))


def test_all_of_a_limit_can_be_spent(tmp_path: Path) -> None:
    """An epsilon that is just what four rounds cost lets just four rounds through, by PLD too."""
    limit = Limit(epsilon([Event(2.0, 0.1, 20)], 1e-5).epsilon, 1e-5)
    ledger = opened(tmp_path, limit)
    for round in range(4):
        ledger.reserve("a", round, "1", Event(2.0, 0.1, 5))
    with pytest.raises(OverBudget):
        ledger.reserve("a", 4, "1", Event(2.0, 0.1, 5))


def test_what_was_never_settled_counts_in_full(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.reserve("a", 1, "1", ONE)
    ledger.settle(ledger.reserve("a", 2, "1", ONE), Event(4.0, 0.1, 3))
    ledger.settle(ledger.reserve("a", 3, "1", ONE), None)
    assert opened(tmp_path).account().cost() == epsilon([Event(4.0, 0.1, 13)], LIMIT.delta)


def test_a_retry_with_fresh_noise_costs_again_and_one_attempt_only_once(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.reserve("a", 1, "1", ONE)
    ledger.reserve("a", 1, "2", ONE)
    with pytest.raises(UserError, match="round 1 of run a, attempt 2, was debited before"):
        ledger.reserve("a", 1, "2", ONE)
    assert ledger.account().cost() == epsilon([ONE, ONE], LIMIT.delta)


@pytest.mark.parametrize("more", [Event(4.0, 0.1, 11), Event(4.0, 0.1, 0), Event(5.0, 0.1, 10), Event(4.0, 0.05, 10)])
def test_nothing_is_settled_but_a_part_of_what_was_reserved(tmp_path: Path, more: Event) -> None:
    ledger = opened(tmp_path)
    debit = ledger.reserve("a", 1, "1", ONE)
    with pytest.raises(ValueError, match="is not within"):
        ledger.settle(debit, more)


def test_what_is_settled_stays_so(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    debit = ledger.reserve("a", 1, "1", ONE)
    ledger.settle(debit, ONE)
    with pytest.raises(UserError, match="no open reserve"):
        ledger.settle(debit, None)


def test_a_changed_limit_is_noted_and_rules(tmp_path: Path) -> None:
    opened(tmp_path).reserve("a", 1, "1", ONE)
    less = opened(tmp_path, Limit(0.01, 1e-11))
    with pytest.raises(OverBudget, match=r"limit of 0\.01"):
        less.reserve("a", 2, "1", ONE)
    (path,) = ledgers(tmp_path)
    whats = [json.loads(line)["what"] for line in path.read_bytes().splitlines()]
    assert whats == ["opening", "reserve", "limit"]
    assert read_account(path).limit == Limit(0.01, 1e-11)


def test_each_subject_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    subjects = [
        PATIENTS,
        Subject("heart", "record"),
        Subject("heart", "site"),
        Subject("heart", "group", "clinic/2"),
        Subject("../heart.record", "record"),
        Subject("heart.group.patient_id", "record"),
    ]
    for subject in subjects:
        Ledger(tmp_path / "ledgers", subject, LIMIT)
    paths = ledgers(tmp_path / "ledgers")
    assert len(paths) == len(subjects)
    assert {read_account(path).subject for path in paths} == set(subjects)
    assert [path.name for path in tmp_path.iterdir()] == ["ledgers"]


def test_one_ledger_under_another_s_name_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("heart", "lung")))
    with pytest.raises(UserError, match="this is the ledger of heart, group by patient_id"):
        Ledger(tmp_path, Subject("lung", "group", "patient_id"), LIMIT)


def used(folder: Path) -> dict[str, bytes]:
    """A small ledger's files."""
    ledger = opened(folder)
    ledger.settle(ledger.reserve("a", 1, "1", ONE), ONE)
    return files(folder)


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    """Each byte of both files, by its lowest bit and by all of its bits."""
    whole = used(tmp_path)
    (path,) = ledgers(tmp_path)
    read_account(path)
    for name, data in whole.items():
        for place in range(len(data)):
            for flip in (1, 0xFF):
                changed = bytearray(data)
                changed[place] ^= flip
                (tmp_path / name).write_bytes(changed)
                with pytest.raises(UserError, match=r"heart\.group\.patient_id\.jsonl, line \d: "):
                    read_account(path)
        (tmp_path / name).write_bytes(data)
    path.write_bytes(whole[path.name].replace(b'"count":10', b'"count":11', 1))
    with pytest.raises(UserError, match="line 2"):
        opened(tmp_path)


def test_any_cut_is_found(tmp_path: Path) -> None:
    whole = used(tmp_path)
    (path,) = ledgers(tmp_path)
    for size in range(len(whole[path.name])):
        path.write_bytes(whole[path.name][:size])
        with pytest.raises(UserError, match="line "):
            opened(tmp_path)
    for name in whole:
        restore(tmp_path, {other: data for other, data in whole.items() if other != name})
        with pytest.raises(UserError, match="entries are missing"):
            opened(tmp_path)


def test_a_ledger_that_was_put_back_to_an_earlier_day_is_found_by_its_head(tmp_path: Path) -> None:
    earlier = used(tmp_path)
    opened(tmp_path).reserve("a", 2, "1", ONE)
    (path,) = ledgers(tmp_path)
    path.write_bytes(earlier[path.name])
    with pytest.raises(UserError, match=r"entries are missing behind line 3, or .*\.head was changed"):
        opened(tmp_path)


def deaths(before: dict[str, bytes], after: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """What a process can leave behind that dies while it adds an entry: the entry comes first, then the head."""
    (name,) = [name for name in after if name.endswith(".jsonl")]
    (head,) = [name for name in after if name.endswith(".head")]
    for size in range(len(before.get(name, b"")), len(after[name]) + 1):
        left = {**before, name: after[name][:size]}
        yield left
        yield {**left, f".{head}.7.tmp": after[head][:9]}
    yield after


def test_whoever_dies_while_adding_has_released_nothing(tmp_path: Path) -> None:
    """At each byte: what is cut off was never acted upon, and what is whole counts. The next entry follows on it."""
    before = used(tmp_path)
    opened(tmp_path).reserve("a", 2, "1", ONE)
    after = files(tmp_path)
    (path,) = ledgers(tmp_path)
    for left in deaths(before, after):
        restore(tmp_path, left)
        whole = len(left[path.name]) == len(after[path.name])
        assert read_account(path).cost() == epsilon([ONE] * (2 if whole else 1), LIMIT.delta)
        assert files(tmp_path) == left
        if not whole and len(left[path.name]) % 8:
            continue
        opened(tmp_path).reserve("b", 1, "1", ONE)
        account = read_account(path)
        assert account.cost() == epsilon([ONE] * (3 if whole else 2), LIMIT.delta)
        assert (account.entries.torn, account.entries.behind) == (0, False)


def test_whoever_dies_while_opening_leaves_no_ledger_or_a_whole_one(tmp_path: Path) -> None:
    opened(tmp_path)
    after = files(tmp_path)
    for left in deaths({}, after):
        restore(tmp_path, left)
        opened(tmp_path).reserve("a", 1, "1", ONE)
        assert opened(tmp_path).account().cost() == epsilon([ONE], LIMIT.delta)


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from privacy.dp.ledger import Ledger, Limit, Subject
from privacy.dp.mechanism import Event

folder, released = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
limit, one = Limit(1e6, 1e-11), Event(4.0, 0.1, 10)
Ledger(folder, Subject("heart", "record"), limit).account().cost(one)
chance = random.Random(7)
for life in range(25):
    pid = os.fork()
    if pid == 0:
        ledger, round = Ledger(folder, Subject("heart", "record"), limit), 0
        while True:
            round += 1
            debit = ledger.reserve(f"run-{life}", round, "1", one)
            if round % 3 == 0:
                ledger.settle(debit, None)
                continue
            os.write(released, b"x")
            if round % 3 == 1:
                ledger.settle(debit, one)
    time.sleep(chance.uniform(0.005, 0.15))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def test_a_killed_site_never_counts_less_than_it_released(tmp_path: Path) -> None:
    """25 processes are killed while they reserve, release and settle; all that was released is in the ledger."""
    program = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / "ledgers"), str(tmp_path / "released")]
    subprocess.run(program, check=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    released = len((tmp_path / "released").read_bytes())
    (path,) = ledgers(tmp_path / "ledgers")
    account = read_account(path)
    counted = [debit for debit in account.debits.values() if debit.event is not None]
    assert released > 25
    assert released <= len(counted) <= released + 25
    assert {debit.event for debit in counted} == {Event(4.0, 0.1, 10)}


SHARED = """
import sys
from pathlib import Path
from privacy.dp.ledger import Ledger, Limit, OverBudget, Subject
from privacy.dp.mechanism import Event

ledger, round = Ledger(Path(sys.argv[1]), Subject("heart", "record"), Limit(3.0, 1e-11)), 0
try:
    while True:
        round += 1
        ledger.reserve(sys.argv[2], round, "1", Event(8.0, 0.1, 10))
except OverBudget:
    print(round - 1)
"""


def test_runs_that_share_a_ledger_spend_no_more_together(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", SHARED, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b", "c")
    ]
    granted = [int(run.communicate(timeout=300)[0]) for run in runs]
    (path,) = ledgers(tmp_path)
    account = read_account(path)
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert sum(granted) == len(account.debits)
    assert account.cost().epsilon <= 3.0 < account.cost(Event(8.0, 0.1, 10)).epsilon


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a directory; nothing is released without it"):
        opened(tmp_path / "file")
