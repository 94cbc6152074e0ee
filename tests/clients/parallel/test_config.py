"""[training] of a site.toml: what may be asked for, and what cannot work."""

import subprocess
import sys
from pathlib import Path

import pytest

from clients.parallel.config import Degrees, ParallelKeys
from clients.parallel.degrees import chosen
from clients.sitefile import load_site_file
from hansa.errors import UserError

HEAD = '[site]\nname = "a"\nserver = "fl.example.org:9092"\n[training]\n'


def load(folder: Path, text: str) -> ParallelKeys:
    path = folder / "site.toml"
    path.write_text(HEAD + text)
    return load_site_file(path).training


def test_nothing_written_is_plain_and_leaves_the_choice_open(tmp_path: Path) -> None:
    keys = load(tmp_path, "")
    assert keys.plain
    assert load(tmp_path, 'parallel = "auto"').degrees(8) is None
    assert keys.degrees(8) is None


def test_degrees_multiply_to_the_processes(tmp_path: Path) -> None:
    keys = load(tmp_path, "procs = 8\nparallel = { shard = 4, tp = 2 }\n")
    assert keys.degrees(8) == Degrees(shard=4, tp=2)
    with pytest.raises(ValueError, match='shard 4 x tp 2 is for 8, and procs = 4; set procs = 8, or parallel = "auto"'):
        keys.degrees(4)


@pytest.mark.parametrize("key", ["activation_checkpointing = true", "compile = true", "accumulation = 2"])
def test_one_process_may_save_memory_too(tmp_path: Path, key: str) -> None:
    assert not load(tmp_path, key).plain


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("parallel = { dp = 2, tp = 2 }", "dp and tp do not go together; write shard = 2 in place of dp"),
        ("parallel = { dp = 2, shard = 4 }", "dp and shard do not go together; write shard = 8 and leave dp out"),
        (
            "procs = 2\nparallel = { shard = 3 }",
            'parallel: shard 3 is for 3, and procs = 2; set procs = 3, or parallel = "auto"',
        ),
        ("parallel = { shard = 2 }", "parallel: shard 2 is for 2, and procs = 1; set procs = 2"),
        ("parallel = { dp = 0 }", "dp: must be at least 1; got 0"),
        ("parallel = { pp = 2 }", "pp: no such key (keys: dp, shard, tp)"),
        ('parallel = "fsdp"', 'must be "auto", or degrees, e.g. { shard = 4 }'),
        ("accumulation = 0", "accumulation"),
        ('precision = "float16"', "precision"),
    ],
)
def test_what_cannot_work_is_a_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        load(tmp_path, text + "\n")
    assert len(str(refused.value).splitlines()) == 1
    assert says in str(refused.value)
    assert "[training" in str(refused.value)


def test_auto_shards_what_does_not_fit() -> None:
    """Sixteen bytes a float32 parameter under Adam, in six tenths of the memory."""
    fits, said = chosen(16 * 10**9, 40 * 10**9, 4)
    assert fits == Degrees(dp=4)
    assert said.startswith(
        "parallel: each process holds the whole model (DDP); with gradients and moments it takes 14.9"
    )
    assert chosen(16 * 10**9, 20 * 10**9, 4)[0] == Degrees(shard=4)


def test_reading_the_keys_imports_no_torch() -> None:
    start = "import sys, clients.sitefile; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("degrees", "procs", "found"),
    [
        (Degrees(dp=4), 3, Degrees(dp=3)),
        (Degrees(shard=4), 2, Degrees(shard=2)),
        (Degrees(shard=2, tp=2), 2, Degrees(tp=2)),
        (Degrees(tp=2), 4, Degrees(shard=2, tp=2)),
    ],
)
def test_degrees_go_over_fewer_processes_and_keep_how_layers_are_cut(
    degrees: Degrees, procs: int, found: Degrees
) -> None:
    assert degrees.over(procs) == found
    assert degrees.over(degrees.procs) == degrees


def test_layers_cut_in_two_need_an_even_number_of_processes() -> None:
    with pytest.raises(ValueError, match="tp = 2 cannot be kept over 3 processes"):
        Degrees(shard=2, tp=2).over(3)
