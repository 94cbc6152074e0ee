import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hansa import logs
from hansa.errors import RunFailed, UserError
from hansa.logs import Log
from hansa.processes import command_of, end, in_session, marked, only_one, started
from hansa.supervise import TRIES, Program, Supervisor, lives, told

WAIT = 60.0  # seconds for what takes less than one on an idle machine
SLEEP = ("sleep", "1000")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    one = Supervisor(tmp_path, "test", said.append, os.environ)
    with one:
        yield one
    assert marked(one.mark) == {}
    assert told(tmp_path, "test") is None


def wait_until(supervisor: Supervisor, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        supervisor.wait(0.02)


def test_a_program_that_dies_is_started_again(supervisor: Supervisor, said: list[str]) -> None:
    child = supervisor.start(Program("Sleeper", SLEEP))
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(supervisor, lambda: child.pid not in (None, first))
    assert said == ["Sleeper ended (signal SIGKILL); starting it again"]
    assert (told(supervisor.folder, "test") or {})["programs"] == {"Sleeper": child.pid}


def test_a_program_that_cannot_start_is_given_up(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start(Program("Broken", python("print('no such file'); raise SystemExit(3)")))
    with pytest.raises(RunFailed, match=rf"Broken ended {TRIES} times .*exit code 3.*logs/broken\.log"):
        supervisor.wait(WAIT)
    assert said.count("Broken: no such file") == TRIES


def test_an_excused_end_is_no_failure(supervisor: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.supervise.EXCUSED", 0.0)
    program = Program("Turned", python("print('busy')"), excuse=lambda lines: "later" if "busy" in lines else None)
    child = supervisor.start(program)
    wait_until(supervisor, lambda: said.count("later") > TRIES)
    assert child.failures == 0


def test_only_what_tells_something_is_shown(supervisor: Supervisor, said: list[str]) -> None:
    def shown(line: str) -> str | None:
        return line.upper() if line.startswith("warning") else None

    child = supervisor.start(Program("Talker", python("print('chatter\\nwarning: hot'); input()"), shown=shown))
    wait_until(supervisor, lambda: said)
    assert said[0] == "Talker: WARNING: HOT"
    assert child.log.path.read_text().startswith("chatter\n")


def test_descendants_end_with_their_program(supervisor: Supervisor) -> None:
    family = "import subprocess; subprocess.Popen(['sleep', '1000']).wait()"
    child = supervisor.start(Program("Parent", python(family)))
    other = supervisor.start(Program("Other", SLEEP))
    wait_until(supervisor, lambda: len(supervisor.members(child)) == 2)
    supervisor.drop(child)
    assert list(marked(supervisor.mark)) == [other.pid]


def test_what_a_dead_program_had_started_ends_with_the_supervisor(supervisor: Supervisor) -> None:
    family = "import subprocess; subprocess.Popen(['sleep', '1000']).wait()"
    child = supervisor.start(Program("Parent", python(family)))
    wait_until(supervisor, lambda: len(supervisor.members(child)) == 2)
    assert child.pid is not None
    (orphan,) = set(supervisor.members(child)) - {child.pid}
    os.kill(child.pid, signal.SIGKILL)
    wait_until(supervisor, lambda: started(orphan) and len(marked(supervisor.mark)) == 3)


def test_a_program_that_ignores_signals_ends_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.supervise.FORCE", 0.2)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"
    )
    said: list[str] = []
    with Supervisor(tmp_path, "test", said.append, os.environ) as supervisor:
        child = supervisor.start(Program("Deaf", python(deaf)))
        wait_until(supervisor, lambda: said)
        pid = child.pid
    assert pid is not None
    assert started(pid) is None


def test_signals_of_a_stop_come_in_their_order(tmp_path: Path) -> None:
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('first', flush=True))\n"
        "signal.signal(signal.SIGINT, lambda *_: (print('second', flush=True), exit()))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(9)"
    )
    said: list[str] = []
    with Supervisor(tmp_path, "test", said.append, os.environ) as supervisor:
        supervisor.start(Program("Slow", python(code), stop=((0.1, signal.SIGINT), (0.0, signal.SIGTERM))))
        wait_until(supervisor, lambda: said)
    assert said == ["Slow: up", "Slow: first", "Slow: second"]


def test_a_signal_stops_it_quietly(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Supervisor(tmp_path, "test", print, os.environ) as supervisor:
        supervisor.start(Program("Sleeper", SLEEP))
        os.kill(os.getpid(), signal.SIGTERM)
        supervisor.wait(WAIT)
        before = signal.SIG_DFL  # not reached
    assert marked(supervisor.mark) == {}
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_failing_goodbye_leaves_no_process(tmp_path: Path) -> None:
    def goodbye() -> None:
        raise ValueError("no number")

    supervisor = Supervisor(tmp_path, "test", print, os.environ)
    supervisor.at_stop.append(goodbye)
    with pytest.raises(ValueError, match="no number"), supervisor:
        supervisor.start(Program("Sleeper", SLEEP))
    assert marked(supervisor.mark) == {}


def test_a_folder_has_one_supervisor(supervisor: Supervisor) -> None:
    with pytest.raises(UserError, match="runs there already"), Supervisor(supervisor.folder, "test", print, {}):
        pass
    assert lives(told(supervisor.folder, "test") or {})


KILLED = """
import os, sys
from pathlib import Path
from signal import SIGTERM
from hansa.supervise import Program, Supervisor
with Supervisor(Path(sys.argv[1]), "test", print, os.environ) as supervisor:
    supervisor.start(Program("Stays", ("sleep", "1000")))
    supervisor.start(Program("Goes", ("sleep", "1000"), orphaned=SIGTERM))
    print("up", flush=True)
    supervisor.wait(1000)
"""


def test_what_a_killed_supervisor_left_is_ended_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    with (
        subprocess.Popen([*python(KILLED), str(tmp_path)], stdout=subprocess.PIPE) as killed,
        subprocess.Popen(SLEEP) as foreign,
    ):
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"up\n"
        programs = (told(tmp_path, "test") or {})["programs"]
        killed.kill()
        killed.wait()
        until(lambda: started(programs["Goes"]) is None)  # it was tied to its parent
        assert started(programs["Stays"])
        assert not lives(told(tmp_path, "test") or {})
        said: list[str] = []
        with Supervisor(tmp_path, "test", said.append, os.environ):
            assert said == ["ended 1 processes that an earlier hansa test up had left when it was killed"]
            assert started(programs["Stays"]) is None
        assert started(foreign.pid)
        foreign.kill()


def test_a_recycled_pid_does_not_live(tmp_path: Path) -> None:
    """A file that names this process's id, but another start: what held the id before is gone."""
    (tmp_path / "run").mkdir()
    state = {"pid": os.getpid(), "started": "another boot 1", "mark": "0" * 16, "programs": {}}
    (tmp_path / "run" / "test.json").write_text(json.dumps(state))
    assert not lives(told(tmp_path, "test") or {})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1'])
def test_a_damaged_file_is_that_of_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "test.json").write_text(text)
    assert told(tmp_path, "test") is None


def test_a_zombie_is_no_live_process() -> None:
    with subprocess.Popen(SLEEP) as child:
        child.kill()
        until(lambda: not command_of(child.pid))
        assert child.pid in in_session(os.getsid(0))
        assert started(child.pid) is None


def test_only_marked_processes_are_ended() -> None:
    env = {**os.environ, "HANSA_SUPERVISOR": "a"}
    with (
        subprocess.Popen(SLEEP, env=env) as ours,
        subprocess.Popen(SLEEP, env={**env, "HANSA_SUPERVISOR": "aa"}) as not_ours,
    ):
        until(lambda: marked("a") and marked("aa"))
        ending = subprocess.Popen(
            python("from hansa.processes import end; print(end('a', 5.0))"), stdout=subprocess.PIPE
        )
        ours.wait(WAIT)
        assert ending.communicate()[0] == b"1\n"
        assert started(not_ours.pid)
        not_ours.kill()
    assert end("a", 0.0) == 0


def test_a_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom hansa.processes import only_one\n"
        "with only_one(Path(sys.argv[1]), ''): print(1, flush=True); input()"
    )
    path = tmp_path / "lock"
    with subprocess.Popen([*python(code), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        with pytest.raises(UserError, match="mine"), only_one(path, "mine"):
            pass
        holder.kill()
        holder.wait()
        with only_one(path, "mine"):
            pass


def test_a_log_is_read_line_by_line_from_where_it_ended(tmp_path: Path) -> None:
    (path := tmp_path / "a.log").write_text("old\n")
    log = Log(path)
    with path.open("ab") as file:
        for part, lines in (
            (b"one\ntw", ["one"]),
            (b"o\n\xff\n", ["two", "\ufffd"]),
            (b"", []),
        ):
            file.write(part)
            file.flush()
            assert log.new_lines() == lines
    assert list(log.last) == ["one", "two", "\ufffd"]


def test_a_large_log_starts_anew_under_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BYTES", 10)
    path = tmp_path / "a.log"
    log = Log(path)
    with path.open("ab") as file:
        for number in range(6):
            file.write(f"line {number} and more\n".encode())
            file.flush()
            assert log.new_lines() == [f"line {number} and more"]
    names = sorted(os.listdir(tmp_path))
    assert names == ["a.log", *(f"a.log.{n}" for n in range(1, logs.OLD + 1))]
    assert [(tmp_path / name).read_text()[:6] for name in names] == ["", "line 5", "line 4", "line 3"]
