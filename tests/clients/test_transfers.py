"""What is half sent or half fetched is gone on with, and what is kept is what was asked for."""

import hashlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.transfers import Sending, Vectors
from hansa.errors import UserError
from hansa.wire.link_pb2 import Blob
from hansa.wire.rules import CHUNK


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def blob(data: bytes, name: str = "params") -> Blob:
    return Blob(name=name, sha256=digest(data), size=len(data))


class Lost(Exception):
    """A connection, in these tests."""


class Source:
    """Bytes from an offset, in pieces; the connection is lost after some of them."""

    def __init__(self, data: bytes, piece: int, losses: list[int]) -> None:
        self.data, self.piece, self.losses, self.sent = data, piece, list(losses), 0

    def __call__(self, offset: int) -> Iterator[bytes]:
        left = self.losses.pop(0) if self.losses else len(self.data)
        for start in range(offset, len(self.data), self.piece):
            if left <= 0:
                raise Lost
            left -= 1
            self.sent += len(self.data[start : start + self.piece])
            yield self.data[start : start + self.piece]


@given(data=st.binary(max_size=60), piece=st.integers(1, 20), losses=st.lists(st.integers(0, 5), max_size=5))
def test_a_vector_comes_whole_and_each_byte_once_however_often_the_connection_is_lost(
    data: bytes, piece: int, losses: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        vectors, source = Vectors(Path(folder)), Source(data, piece, losses)
        for _ in range(len(losses) + 1):
            try:
                vectors.take(blob(data), source)
            except Lost:
                assert vectors.find(blob(data)) is None
                vectors = Vectors(Path(folder))  # as after the death of the process
            else:
                break
        path = vectors.find(blob(data))
        assert path is not None
        assert path.read_bytes() == data
        assert source.sent == len(data)


def test_what_is_not_the_vector_is_not_kept(tmp_path: Path) -> None:
    vectors = Vectors(tmp_path)
    with pytest.raises(UserError, match="what came has another hash"):
        vectors.take(blob(b"vector"), lambda _: [b"victor"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sha256", [b"", b"\x00" * 31])
def test_a_vector_needs_a_hash_for_a_name(sha256: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"a hash of {len(sha256)} bytes"):
        Vectors(tmp_path).find(Blob(name="params", sha256=sha256))


def test_the_vectors_of_two_plans_are_kept(tmp_path: Path) -> None:
    """And nothing else: what has another kind of name belongs to others."""
    vectors, contents = Vectors(tmp_path), [b"one", b"two", b"three"]
    (tmp_path / "upload").touch()
    (tmp_path / f"{'0' * 64}.part").touch()
    for data in contents:
        vectors.take(blob(data), lambda _, data=data: [data])  # type: ignore[misc]
        vectors.keep({digest(data)})
    assert {path.name for path in tmp_path.iterdir()} == {"upload", *(digest(data).hex() for data in contents[1:])}
    assert vectors.find(blob(b"one")) is None


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    data = bytes(1000)
    with files_of_at_most(100), pytest.raises(UserError, match="the disk is full, a vector of 1000 bytes does not fit"):
        Vectors(tmp_path).take(blob(data), lambda _: [data])


@given(size=st.integers(0, 3 * CHUNK), asks=st.lists(st.integers(0, 3 * CHUNK), max_size=4))
def test_the_hash_of_any_beginning_is_right_whatever_was_sent_before(size: int, asks: list[int]) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "update"
        path.write_bytes(data)
        with Sending(path) as sending:
            for ask in asks:
                offset = min(ask, size)
                assert sending.sha256(offset) == digest(data[:offset])
                assert b"".join(sending.chunks(offset)) == data[offset:]
            assert sending.sha256(size) == digest(data)
