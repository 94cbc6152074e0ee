"""An upload is what the site sent, however the bytes came; nothing else is kept."""

import collections
import hashlib
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.spool import BadUpload, Spool, Superseded, Upload


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def numbers(floats: int, integers: int) -> bytes:
    """Finite floats, then integers whose bytes would be NaN, were they floats."""
    return np.arange(floats, dtype="<f4").tobytes() + np.full(integers, -1, "<i8").tobytes()


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """The data, cut at some places."""
    places = sorted({min(cut, len(data)) for cut in cuts})
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        yield data[start:end]


CUTS = st.lists(st.integers(0, 120), max_size=12)


@given(floats=st.integers(0, 20), integers=st.integers(0, 4), cuts=CUTS)
def test_any_cut_of_the_bytes_gives_the_same_file(floats: int, integers: int, cuts: list[int]) -> None:
    data = numbers(floats, integers)
    with TemporaryDirectory() as folder:
        upload = Upload(Path(folder) / "a", floats, integers)
        turn = upload.begin(0)
        for piece in pieces(data, cuts):
            upload.take(turn, piece)
        assert upload.held() == (len(data), digest(data))
        upload.seal(digest(data), len(data))
        upload.close()
        assert upload.path.read_bytes() == data


@given(
    floats=st.integers(1, 20), at=st.integers(0, 19), bad=st.sampled_from([math.nan, math.inf, -math.inf]), cuts=CUTS
)
def test_a_number_that_is_not_finite_is_found_wherever_the_bytes_are_cut(
    floats: int, at: int, bad: float, cuts: list[int]
) -> None:
    at %= floats
    values = np.zeros(floats, "<f4")
    values[at] = bad
    with TemporaryDirectory() as folder:
        upload = Upload(Path(folder) / "a", floats, 0)
        turn = upload.begin(0)
        with pytest.raises(BadUpload, match=f"float {at} of the upload is") as found:
            collections.deque(map(partial(upload.take, turn), pieces(values.tobytes(), cuts)), 0)
        upload.close()
        assert found.value.index == at
        assert str(found.value.value) == str(bad)
        assert upload.path.stat().st_size == 0


@given(cut=st.integers(0, 40), cuts=CUTS)
def test_a_killed_server_goes_on_where_the_file_ends(cut: int, cuts: list[int]) -> None:
    data = numbers(6, 2)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(data[:cut])
        upload = Upload(path, 6, 2)
        assert upload.pause() == (cut, digest(data[:cut]))
        turn = upload.begin(cut)
        for piece in pieces(data[cut:], cuts):
            upload.take(turn, piece)
        upload.seal(digest(data), len(data))
        upload.close()
        assert path.read_bytes() == data


@given(
    chunks=st.lists(
        st.tuples(st.sampled_from(["begin", "again", "old", "take", "pause"]), st.integers(0, 45)), max_size=20
    )
)
def test_whatever_is_tried_the_file_is_a_beginning_of_what_was_sent_in_turn(chunks: list[tuple[str, int]]) -> None:
    """A model of the file beside it: bytes count only from the caller whose turn it is, and only the next ones."""
    data = numbers(10, 0)
    with TemporaryDirectory() as folder:
        upload, sent, turn = Upload(Path(folder) / "a", 10, 0), 0, 0
        for what, number in chunks:
            try:
                if what == "begin":
                    turn = upload.begin(number)
                    sent = number
                elif what == "again":
                    turn, sent = upload.begin(0), 0
                elif what == "old":
                    upload.take(turn - 1, data[:number])
                elif what == "take":
                    upload.take(turn, data[sent : sent + number])
                    sent += len(data[sent : sent + number])
                else:
                    upload.pause()
            except Superseded:
                pass
            have, sha256 = upload.held()
            assert have == sent
            assert sha256 == digest(data[:sent])
            assert upload.path.read_bytes() == data[:sent]
        upload.close()


def test_a_left_over_with_a_bad_number_starts_afresh(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(np.array([0, math.nan], "<f4").tobytes())
    upload = Upload(tmp_path / "a", 3, 0)
    assert upload.held() == (0, digest(b""))
    upload.close()


def test_a_byte_too_many_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    upload = Upload(tmp_path / "a", 2, 0)
    turn = upload.begin(0)
    upload.take(turn, bytes(8))
    with pytest.raises(BadUpload, match="more than the 8 bytes that the plan asks for"):
        upload.take(turn, b"!")
    with pytest.raises(BadUpload, match="more than the 8 bytes"):
        upload.begin(0)
    assert (tmp_path / "a").stat().st_size == 0
    upload.close()


@pytest.mark.parametrize(
    ("sent", "claimed", "says"),
    [
        (bytes(4), bytes(4), "an upload of 4 bytes where the plan asks for 8"),
        (bytes(8), bytes(7) + b"!", "whose hash is not the one"),
    ],
)
def test_what_is_not_whole_is_not_handed_on(sent: bytes, claimed: bytes, says: str, tmp_path: Path) -> None:
    upload = Upload(tmp_path / "a", 2, 0)
    upload.take(upload.begin(0), sent)
    with pytest.raises(BadUpload, match=says):
        upload.seal(digest(claimed), len(claimed))
    upload.close()


def test_what_was_handed_on_changes_no_more(tmp_path: Path) -> None:
    upload = Upload(tmp_path / "a", 2, 0)
    turn = upload.begin(0)
    upload.take(turn, bytes(8))
    upload.seal(digest(bytes(8)), 8)
    with pytest.raises(Superseded):
        upload.begin(0)
    with pytest.raises(Superseded):
        upload.take(turn, b"")
    upload.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    upload = Upload(tmp_path / "a", 1000, 0)
    turn = upload.begin(0)
    with (
        files_of_at_most(100),
        pytest.raises(BadUpload, match="the server's disk is full: no room for an upload of 4000"),
    ):
        upload.take(turn, bytes(2000))
    upload.close()


def test_only_plans_in_hand_have_uploads(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.upload("p1", "a") is None
    spool.expect("p1", 1, 1)
    upload = spool.upload("p1", "a")
    assert upload is not None
    assert upload.size == 12
    upload.take(upload.begin(0), bytes(5))
    spool.retire("p1")
    assert spool.upload("p1", "a") is None
    assert os.listdir(tmp_path) == []


def test_a_new_server_keeps_what_is_left_of_the_plan_that_it_resumes_and_nothing_else(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    for plan in ("p1", "p2"):
        first.expect(plan, 2, 0)
        upload = first.upload(plan, "a")
        assert upload is not None
        upload.take(upload.begin(0), bytes(5))
    first.close()
    second = Spool(tmp_path)
    second.expect("p2", 2, 0)
    assert os.listdir(tmp_path) == ["p2"]
    resumed = second.upload("p2", "a")
    assert resumed is not None
    assert resumed.held()[0] == 5
    second.close()


@given(data=st.binary(min_size=1, max_size=100), cuts=CUTS)
def test_masked_bytes_may_be_anything(data: bytes, cuts: list[int]) -> None:
    """Under masks the bytes of NaN are as likely as any others."""
    data += np.full(3, np.nan, "<f4").tobytes()
    with TemporaryDirectory() as folder:
        upload = Upload(Path(folder) / "a", 0, 0, len(data))
        turn = upload.begin(0)
        for piece in pieces(data, cuts):
            upload.take(turn, piece)
        upload.seal(digest(data), len(data))
        upload.close()
        assert upload.path.read_bytes() == data


def test_of_a_masked_upload_the_size_alone_is_known(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.expect("3-train-valid.1.1", 0, 0, 1000)
    assert spool.size("3-train-valid.1.1") == 1000
