"""What a stranger may send: nothing that is not a frame is taken for one, and nothing large is kept."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.agents.frames import BYTES, TEXT, Broken, Frames, framed, had

SAID = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


@given(st.lists(st.tuples(SAID, st.binary(max_size=50)), max_size=4), st.integers(1, 40))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[tuple[dict[str, object], bytes]], cut: int
) -> None:
    stream = b"".join(framed(*one) for one in sent)
    frames, come = Frames(), list[tuple[dict[str, object], bytes]]()
    for at in range(0, len(stream), cut):
        come += frames.feed(stream[at : at + cut])
    assert come == sent


@pytest.mark.parametrize(
    "head", [struct.pack("<QQ", TEXT + 1, 0), struct.pack("<QQ", 2, BYTES + 1), b"GET / HTTP/1.1\r\n\r\n"]
)
def test_a_frame_that_is_too_large_is_refused_by_its_head_alone(head: bytes) -> None:
    with pytest.raises(Broken, match="a frame of"):
        list(Frames().feed(head))


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(Broken, match=r"no JSON|no object"):
        list(Frames().feed(struct.pack("<QQ", len(text), 0) + text))


@pytest.mark.parametrize("said", [{}, {"rank": "0"}, {"rank": True}, {"rank": None}])
def test_a_value_of_another_kind_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(Broken, match="rank is no int"):
        had(said, "rank", int)
