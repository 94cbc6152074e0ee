import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hansa.errors import UserError
from hansa.records import ServerState
from server.checkpoint import Best, Checkpoints, Progress, RunLock


def state(fill: float) -> ServerState:
    return ServerState(torch.full((5,), fill), torch.tensor([int(fill)]), {"c": torch.full((3,), -fill)})


def flip(path: Path) -> None:
    """Changes the last byte of a file."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def committed(folder: Path, rounds: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for number in range(1, rounds + 1):
        checkpoints.save(state(number), Progress(number))
    return checkpoints


def loaded(folder: Path) -> tuple[ServerState, Progress]:
    found = Checkpoints(folder).load()
    assert found is not None
    return found


def bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.numpy().tobytes()


# Any 4 or 8 bytes are a float32 or an int64: NaNs with payloads, infinities, subnormals and negative zeros among them.
floats = st.binary(max_size=64).map(lambda b: torch.from_numpy(np.frombuffer(b[: len(b) // 4 * 4], np.float32).copy()))
integers = st.binary(max_size=64).map(lambda b: torch.from_numpy(np.frombuffer(b[: len(b) // 8 * 8], np.int64).copy()))
states = st.builds(ServerState, floats, integers, st.dictionaries(st.text(max_size=8), floats, max_size=3))

numbers = st.integers(0, 10**9)
finite = st.floats(allow_nan=False)  # infinities are allowed: a diverged loss is one
progresses = st.builds(
    Progress,
    round=numbers,
    best=st.none() | st.builds(Best, numbers, finite),
    since_best=numbers,
    void_in_a_row=numbers,
    memory=st.dictionaries(st.text(), st.text(), max_size=3),
)


@settings(max_examples=40)
@given(states, progresses)
def test_what_was_saved_is_loaded_bit_for_bit(before: ServerState, progress: Progress) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(Path(folder)).save(before, progress)
        after, same = loaded(Path(folder))
        assert same == progress
        assert bits(after.params) == bits(before.params)
        assert bits(after.counters) == bits(before.counters)
        assert {n: bits(t) for n, t in after.shared.items()} == {n: bits(t) for n, t in before.shared.items()}


def test_vectors_that_share_memory_or_are_strided_are_saved_as_they_look(tmp_path: Path) -> None:
    params = torch.arange(6.0)
    shared = {"same": params, "tail": params[4:], "even": params[::2], "flat": torch.ones(1).expand(3)}
    Checkpoints(tmp_path).save(ServerState(params, torch.tensor([1]), shared, {"own": params[1:]}), Progress(1))
    after = loaded(tmp_path)[0].shared
    assert loaded(tmp_path)[0].own["own"].tolist() == [1, 2, 3, 4, 5]
    assert {name: tensor.tolist() for name, tensor in after.items()} == {n: t.tolist() for n, t in shared.items()}


def test_writing_to_a_loaded_state_leaves_the_checkpoint_whole(tmp_path: Path) -> None:
    committed(tmp_path, 1)
    loaded(tmp_path)[0].params.zero_()
    assert loaded(tmp_path)[0].params.tolist() == [1.0] * 5


def test_a_folder_without_commits_holds_nothing(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").load() is None
    (tmp_path / ".round-000001.safetensors.tmp").write_bytes(b"killed before the first round had its name")
    assert Checkpoints(tmp_path).load() is None


def test_the_newest_two_rounds_remain_and_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".round-000001.safetensors.tmp").touch()
    (tmp_path / "best-model.safetensors").touch()  # the user's own
    committed(tmp_path, 5)
    rounds = [f"round-{n:06d}.safetensors" for n in (4, 5)]
    assert sorted(os.listdir(tmp_path)) == ["best-model.safetensors", *rounds]


def test_rounds_are_ordered_as_numbers(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000, 1_000_001):
        Checkpoints(tmp_path).save(state(1), Progress(number))
    assert loaded(tmp_path)[1].round == 1_000_001
    assert len(list(tmp_path.iterdir())) == 2


def altered(path: Path, before: bytes, after: bytes) -> None:
    """Puts other bytes in the place of some that stand there once."""
    data = path.read_bytes()
    assert data.count(before) == 1
    path.write_bytes(data.replace(before, after))


def foreign(path: Path) -> None:
    """Writes a whole safetensors file that is no checkpoint."""
    save_file({"params": torch.zeros(5)}, path)


TORN = {
    "killed before it had its name": lambda f: f.rename(f.with_name(f".{f.name}.tmp")),
    "cut short in the head": lambda f: os.truncate(f, 30),
    "cut short in the tensors": lambda f: os.truncate(f, f.stat().st_size - 1),
    "empty": lambda f: os.truncate(f, 0),
    "missing": lambda f: f.unlink(),
    "one byte of the tensors": flip,
    "something else": lambda f: f.write_bytes(b"[1]"),
    "a model of another program": foreign,
    "one digit of the progress": lambda f: altered(f, b'void_in_a_row\\": 0', b'void_in_a_row\\": 1'),
}


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN.keys())
def test_a_torn_or_corrupted_newest_round_gives_way_to_the_one_before(
    tmp_path: Path, tear: Any, caplog: pytest.LogCaptureFixture
) -> None:
    committed(tmp_path, 3)
    tear(tmp_path / "round-000003.safetensors")
    with caplog.at_level(logging.WARNING):
        after, progress = loaded(tmp_path)
    assert (progress.round, after.params.tolist()) == (2, [2.0] * 5)
    uncommitted = not (tmp_path / "round-000003.safetensors").exists()
    assert ("round 3" in caplog.text) is not uncommitted


def test_a_round_done_again_after_damage_is_whole(tmp_path: Path) -> None:
    committed(tmp_path, 3)
    flip(tmp_path / "round-000003.safetensors")
    again = Checkpoints(tmp_path)
    again.load()
    again.save(state(30), Progress(3))
    assert loaded(tmp_path)[0].params.tolist() == [30.0] * 5


def test_no_whole_checkpoint_among_several_is_an_error(tmp_path: Path) -> None:
    committed(tmp_path, 3)
    for path in tmp_path.glob("*.safetensors"):
        flip(path)
    with pytest.raises(UserError, match=f"{tmp_path}: no checkpoint in it is whole"):
        Checkpoints(tmp_path).load()


def test_a_format_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("server.checkpoint.FORMAT", "2")
        committed(tmp_path, 1)
    with pytest.raises(UserError):
        Checkpoints(tmp_path).load()


def test_the_best_model_outlives_the_rounds(tmp_path: Path) -> None:
    checkpoints = committed(tmp_path, 1)
    checkpoints.save_best(state(1))
    for number in range(2, 6):
        checkpoints.save(state(number), Progress(number, Best(1, 0.5)))
    assert checkpoints.load_best().params.tolist() == [1.0] * 5
    resumed = Checkpoints(tmp_path)
    assert resumed.load_best().params.tolist() == [1.0] * 5
    resumed.save(state(6), Progress(6, Best(1, 0.5)))
    assert Checkpoints(tmp_path).load_best().params.tolist() == [1.0] * 5


def test_a_better_model_replaces_the_best_and_its_file_goes_with_its_last_round(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(1, 6):
        checkpoints.save_best(state(10 * number))
        checkpoints.save(state(number), Progress(number, Best(number, 0.5)))
    assert checkpoints.load_best().params.tolist() == [50.0] * 5
    assert len(list(tmp_path.glob("best-*"))) == 2  # of the newest round, and of the one before it


def test_a_best_model_of_a_round_that_was_not_committed_is_forgotten(tmp_path: Path) -> None:
    """Killed between save_best and save: the resumed run knows the best model that its progress names."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(state(10))
    checkpoints.save(state(1), Progress(1, Best(1, 0.5)))
    checkpoints.save_best(state(20))
    resumed = Checkpoints(tmp_path)
    resumed.load()
    assert resumed.load_best().params.tolist() == [10.0] * 5


def test_falling_back_to_a_round_falls_back_to_its_best_model(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2):
        checkpoints.save_best(state(10 * number))
        checkpoints.save(state(number), Progress(number, Best(number, 0.5)))
    flip(tmp_path / "round-000002.safetensors")
    resumed = Checkpoints(tmp_path)
    resumed.load()
    assert resumed.load_best().params.tolist() == [10.0] * 5


def test_a_best_model_that_is_missing_or_damaged_is_an_error(tmp_path: Path) -> None:
    checkpoints = committed(tmp_path, 1)
    with pytest.raises(UserError, match="no best model was kept"):
        checkpoints.load_best()
    checkpoints.save_best(state(1))
    flip(next(tmp_path.glob("best-*")))
    with pytest.raises(UserError, match="the best model is damaged"):
        checkpoints.load_best()


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_round_before(tmp_path: Path) -> None:
    checkpoints = committed(tmp_path, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError) as caught:
            checkpoints.save(ServerState(torch.zeros(100_000), torch.tensor([3])), Progress(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert loaded(tmp_path)[1].round == 2
    checkpoints.save(state(3), Progress(3))
    assert loaded(tmp_path)[1].round == 3


def child(code: str, folder: Path) -> "subprocess.Popen[str]":
    """A process that runs code on a folder; it says a line when it is ready."""
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


WRITER = """
import sys, torch
from pathlib import Path
from hansa.records import ServerState
from server.checkpoint import Checkpoints, Progress
checkpoints = Checkpoints(Path(sys.argv[1]))
for n in range(1, 10**6):
    state = ServerState(torch.full((200_000,), float(n)), torch.tensor([n]))
    checkpoints.save_best(state)
    checkpoints.save(state, Progress(n, since_best=n))
    if n >= 3:
        print(n, flush=True)
"""


def test_a_writer_killed_at_any_time_loses_no_committed_round(tmp_path: Path) -> None:
    process = child(WRITER, tmp_path)
    assert process.stdout is not None
    said = [3]
    for _ in range(10):
        said.append(int(process.stdout.readline()))
    process.send_signal(signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().split()]
    process.wait()
    process.stdout.close()
    after, progress = loaded(tmp_path)
    assert progress.round >= max(said)
    assert torch.equal(after.params, torch.full((200_000,), float(progress.round)))
    assert progress.since_best == progress.round
    assert Checkpoints(tmp_path).load_best().counters.tolist() == [progress.round]


HOLDER = """
import os, sys, time
from pathlib import Path
from server.checkpoint import RunLock
with RunLock(Path(sys.argv[1])):
    worker = os.fork()
    if worker:
        print(worker, flush=True)
    time.sleep(60)
"""


def test_a_run_in_use_is_refused_until_its_process_is_gone_though_a_forked_worker_lives_on(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        with pytest.raises(UserError, match=f"run {tmp_path.name} is in use by another process"), RunLock(tmp_path):
            pass
        process.kill()
        process.wait()
        with RunLock(tmp_path):
            os.kill(worker, 0)  # it is alive
    finally:
        os.kill(worker, signal.SIGKILL)
        process.stdout.close()


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(UserError), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


def test_the_metadata_is_fit_for_other_readers(tmp_path: Path) -> None:
    """The file is an interface: what reads a run's folder finds the progress under its names."""
    Checkpoints(tmp_path).save(state(1), Progress(1, Best(1, 0.25), memory={"north": "000001-abc"}))
    with safe_open(tmp_path / "round-000001.safetensors", "pt") as file:
        progress = json.loads(file.metadata()["progress"])
    assert progress["best"] == {"round": 1, "value": 0.25}
    assert progress["memory"] == {"north": "000001-abc"}
