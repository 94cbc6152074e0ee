"""A file is whole or as it was before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hansa.files import whole, write_atomically


def by_name(path: Path, data: bytes) -> None:
    with whole(path) as temporary:
        temporary.write_bytes(data)
        if data == b"broken":
            raise OSError("the disk is full")


@pytest.mark.parametrize("write", [by_name, write_atomically])
def test_what_is_written_takes_the_old_one_s_place(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    for data in (b"old", b"new"):
        write(tmp_path / "model", data)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model": b"new"}


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    by_name(tmp_path / "model", b"old")
    with pytest.raises(OSError, match="disk"):
        by_name(tmp_path / "model", b"broken")
    assert (tmp_path / "model").read_bytes() == b"old"
