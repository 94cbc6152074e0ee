"""Who holds a GPU's lock, and when it is free again. A lock knows nothing of GPUs: any name serves."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.gpulock import GpuLock
from clients.worker import Place
from hansa.errors import UserError

UUID = "GPU-0e6ad4ea-4bd4-4bd8-8a1b-5a3c7b0e5a9d"
HOLD = """
import os, sys
from pathlib import Path
from clients.gpulock import GpuLock
lock = GpuLock(sys.argv[1], "site lyon, run r7, rank 0", Path(sys.argv[2]))
child = os.fork()
if not child:
    os.read(0, 1)  # outlives its parent, until the test lets go
    os._exit(0)
print("held", flush=True)
os.read(0, 1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gpus"


@pytest.fixture
def other(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the GPU, and has a child."""
    command = [sys.executable, "-c", HOLD, UUID, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_told_who_holds_the_gpu(other: "subprocess.Popen[str]", folder: Path) -> None:
    with pytest.raises(UserError) as refused:
        GpuLock(UUID, "site oslo, run r8, rank 0", folder, patience=0)
    mend = "wait until that ends, or name other GPUs in site.toml [training] device or devices"
    assert str(refused.value) == f"GPU {UUID} is in use by site lyon, run r7, rank 0; {mend}"
    GpuLock("GPU-another", "site oslo, run r8, rank 0", folder, patience=0).release()


def test_a_holder_that_is_killed_lets_go_though_its_loaders_live(other: "subprocess.Popen[str]", folder: Path) -> None:
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    GpuLock(UUID, "site oslo, run r8, rank 0", folder).release()


def test_a_lock_is_free_again_once_released_and_names_its_next_holder(folder: Path) -> None:
    GpuLock(UUID, "site lyon, run r7, rank 0 of many", folder).release()
    held = GpuLock(UUID, "site oslo", folder, patience=0)
    with pytest.raises(UserError, match=f"GPU {UUID} is in use by site oslo; "):
        GpuLock(UUID, "the same process", folder, patience=0)
    held.release()


def test_other_users_may_lock_and_no_link_is_followed(folder: Path, tmp_path: Path) -> None:
    """The folder is anyone's to add to, as /tmp is; only owners remove, and a link gets nobody's file written."""
    GpuLock(UUID, "one", folder).release()
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / f"{UUID}.lock").stat().st_mode & 0o777 == 0o666
    (tmp_path / "precious").write_text("kept")
    (folder / "GPU-x.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"GPU GPU-x: .*Too many levels of symbolic links; make"):
        GpuLock("GPU-x", "one", folder)
    (tmp_path / "elsewhere").symlink_to(folder)
    with pytest.raises(UserError, match="a folder for all users"):
        GpuLock(UUID, "one", tmp_path / "elsewhere")
    assert (tmp_path / "precious").read_text() == "kept"


def test_what_another_user_wrote_stays_one_line(folder: Path) -> None:
    held = GpuLock(UUID, "evil\n\x1b[31m" + "x" * 1000, folder)
    with pytest.raises(UserError) as refused:
        GpuLock(UUID, "one", folder, patience=0)
    held.release()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def test_ranks_share_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[site]\nname = "a"\nserver = "h:1"\n[training]\ndevice = "cpu"\n')
    for run in ("r1", "r2"):
        Place(tmp_path, 0, 1, 0).claim(run)


@pytest.mark.gpu
def test_a_gpu_is_held_by_the_rank_that_computes_on_it(tmp_path: Path) -> None:
    import torch

    (tmp_path / "site.toml").write_text('[site]\nname = "a"\nserver = "h:1"\n[training]\ndevice = "cuda:0"\n')
    place = Place(tmp_path, 0, 1, 0)
    place.claim("r1")
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    with pytest.raises(UserError, match=f"GPU {uuid} is in use by site a, run r1, rank 0"):
        GpuLock(uuid, "another", patience=0)
