"""Records survive the way to the other end bit for bit; what is broken on the way gives one line."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from hansa import codec
from hansa.draft import Draft
from hansa.errors import UserError
from hansa.records import Broadcast, Part, Plan, Refusal, Reply
from hansa.wire import link_pb2 as wire

NAMES = st.text(min_size=1, max_size=8)
VERSIONS = st.from_regex(codec.VERSION, fullmatch=True)
KINDS: st.SearchStrategy[codec.Kind] = st.sampled_from(["train", "evaluate"])
SPLITS: st.SearchStrategy[codec.Split] = st.sampled_from(["valid", "test"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def floats(size: int) -> st.SearchStrategy[Tensor]:
    return arrays("<f4", size, elements=st.floats(width=32)).map(torch.from_numpy)


def integers(size: int) -> st.SearchStrategy[Tensor]:
    return arrays("<i8", size).map(torch.from_numpy)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, NaN and the sign of zero included."""
    return a.dtype == b.dtype and a.shape == b.shape and bytes(codec.view(a)) == bytes(codec.view(b))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(0, 20))
    sent = Broadcast(draw(floats(size)), draw(integers(draw(st.integers(0, 3)))), {"c": draw(floats(size))})
    kind, split = draw(KINDS), draw(SPLITS)
    hyper = draw(st.dictionaries(st.text(), JSON, max_size=4))
    memory = draw(st.dictionaries(st.sampled_from(["a", "b"]), NAMES))
    number, seed = draw(st.integers(1, 2**31)), draw(st.integers(-(2**63), 2**63 - 1))
    return Plan(draw(NAMES), seed, number, kind, split, sent, hyper, memory)


def carry(plan: Plan, site: str, folder: Path, inline: bool) -> Plan:
    """The way of a plan: vectors to files or to bytes, the rest to bytes, and back."""
    files, frame = {}, codec.to_plan(plan, "id", site)
    for number, (name, vector) in enumerate(codec.plan_vectors(plan.broadcast).items()):
        if inline:
            frame.vectors.add(name=name, size=vector.nbytes, data=bytes(vector))
        else:
            files[name] = folder / str(number)
            files[name].write_bytes(vector)
    return codec.from_plan(wire.Plan.FromString(frame.SerializeToString()), site, files)


@given(plan=plans(), inline=st.booleans())
def test_plan_comes_as_it_went_with_the_site_s_own_memory_only(plan: Plan, inline: bool) -> None:
    with TemporaryDirectory() as folder:
        came = carry(plan, "a", Path(folder), inline)
        assert (came.run, came.seed, came.round, came.kind, came.split) == (
            plan.run,
            plan.seed,
            plan.round,
            plan.kind,
            plan.split,
        )
        assert came.hyper == plan.hyper
        assert came.memory == {site: v for site, v in plan.memory.items() if site == "a"}
        assert came.version == plan.version
        assert same(came.broadcast.params, plan.broadcast.params)
        assert same(came.broadcast.counters, plan.broadcast.counters)
        assert same(came.broadcast.shared["c"], plan.broadcast.shared["c"])


@st.composite
def replies(draw: st.DrawFn) -> tuple[Reply, dict[str, Part], int]:
    sizes = draw(st.dictionaries(NAMES, st.integers(0, 9), min_size=1, max_size=3))
    parts = {name: Part(size, "examples") for name, size in sizes.items()}
    upload = {name: draw(floats(size)) for name, size in sizes.items()}
    shapes = st.sampled_from([(2,), (2, 3), (0,), ()])
    sums = draw(st.dictionaries(NAMES, shapes.flatmap(lambda s: arrays("<f8", s)), max_size=3))
    n_counters = draw(st.integers(0, 3))
    counters = draw(integers(n_counters))
    reply = Reply(
        "a",
        draw(st.integers(0, codec.MOST_ROWS)),
        dict(draw(st.permutations(list(upload.items())))),
        counters,
        {name: torch.from_numpy(np.asarray(one)) for name, one in sums.items()},
        draw(st.none() | VERSIONS),
    )
    return reply, parts, n_counters


@given(case=replies(), inline=st.sampled_from([-1, 40, 1 << 20]))
def test_reply_comes_as_it_went_whatever_order_its_parts_had(
    case: tuple[Reply, dict[str, Part], int], inline: int
) -> None:
    reply, parts, n_counters = case
    with TemporaryDirectory() as folder:
        file, frame = Path(folder) / "upload", codec.to_result(reply, "id", 1)
        codec.put_upload(reply, parts, frame, file, inline)
        plan = Plan("r", 0, 1, "train", "valid", Broadcast(torch.zeros(0), torch.zeros(0)), {})
        n_floats, n_integers = codec.upload_numbers(plan, parts, n_counters)
        size = 4 * n_floats + 8 * n_integers
        came_frame = wire.Result.FromString(frame.SerializeToString())
        there = file if file.exists() else came_frame.upload.data
        assert (file.stat().st_size if file.exists() else came_frame.upload.size) == size
        assert file.exists() == (size > inline)
        came = codec.from_result(came_frame, "a", there, parts, n_counters)
        assert (came.site, came.examples, came.memory) == ("a", reply.examples, reply.memory)
        assert came.counters is not None
        assert reply.counters is not None
        assert same(came.counters, reply.counters)
        assert list(came.upload) == list(parts)
        assert all(same(came.upload[name], reply.upload[name]) for name in parts)
        assert came.sums.keys() == reply.sums.keys()
        assert all(same(came.sums[name], reply.sums[name]) for name in reply.sums)


@pytest.mark.parametrize("parts", [["delta"], ["delta", "control"], ["control", "delta"], ["start"]])
def test_an_upload_that_begins_with_a_draft_is_not_written_again(tmp_path: Path, parts: list[str]) -> None:
    """The file is the draft itself if the draft is all of the first part; whatever it is, its bytes are the same."""
    draft, values = Draft.make(tmp_path / "draft", 6), torch.arange(6.0)
    draft.vector.copy_(values)
    inode, counters = draft.path.stat().st_ino, torch.tensor([7])
    vectors = {"delta": draft.vector, "control": torch.ones(2), "start": draft.vector[:4]}
    upload = {name: vectors[name] for name in parts}
    expected = b"".join(bytes(codec.view(one.clone())) for one in (*upload.values(), counters))
    reply, file = Reply("a", 1, upload, counters), tmp_path / "upload"
    declared = {name: Part(len(one), "examples") for name, one in upload.items()}
    codec.put_upload(reply, declared, wire.Result(), file, inline=-1, draft=draft)
    assert file.read_bytes() == expected
    assert (file.stat().st_ino == inode) == (parts[0] == "delta")


def test_an_evaluation_has_no_upload(tmp_path: Path) -> None:
    reply = Reply("a", 3, sums={"valid/loss": torch.tensor([1.5, 3.0], dtype=torch.float64)})
    frame = codec.to_result(reply, "id", 1)
    codec.put_upload(reply, {"delta": Part(2, "examples")}, frame, tmp_path / "upload")
    assert not (tmp_path / "upload").exists()
    assert not frame.HasField("upload")
    came = codec.from_result(frame, "a", None, {}, 0)
    assert came.counters is None
    assert came.sums["valid/loss"].tolist() == [1.5, 3.0]


def test_a_mapped_vector_is_not_the_file_once_it_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "vector").write_bytes(np.arange(4, dtype="<f4").tobytes())
    vector = codec.numbers(tmp_path / "vector", "<f4")
    vector += 1
    assert vector.tolist() == [1, 2, 3, 4]
    assert np.frombuffer((tmp_path / "vector").read_bytes(), "<f4").tolist() == [0, 1, 2, 3]


def test_a_vector_s_view_shares_its_memory() -> None:
    vector = torch.zeros(3)
    seen = codec.view(vector)
    vector[1] = 1.0
    assert np.frombuffer(seen, "<f4").tolist() == [0, 1, 0]


def test_a_float_of_an_upload_is_found_in_its_part() -> None:
    parts = {"delta": Part(3, "examples"), "empty": Part(0, "uniform"), "c": Part(2, "uniform")}
    assert [codec.locate(i, parts) for i in range(5)] == [("delta", i) for i in range(3)] + [("c", 0), ("c", 1)]


def test_a_refusal_says_its_reason_and_its_code() -> None:
    frame = wire.Refused(plan="id", code="policy", line="the site is closed on Sundays")
    assert codec.from_refused(frame, "a") == Refusal("a", "the site is closed on Sundays (policy)")


@given(frame=st.binary(max_size=200))
def test_any_frame_gives_a_plan_or_one_line(frame: bytes) -> None:
    with TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        empty.touch()
        try:
            plan = wire.Plan.FromString(frame)
        except Exception:
            return
        try:
            codec.from_plan(plan, "a", {"params": empty, "counters": empty})
        except UserError as error:
            line = str(error)
        else:
            line = ""
        assert "\n" not in line


GOOD = wire.Plan(id="7", kind="train", split="valid", hyper="{}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "shuffle"}, "plan '7': kind 'shuffle'"),
        ({"split": "train"}, "split 'train'"),
        ({"hyper": "[1]"}, "not a JSON object"),
        ({"hyper": "{"}, "not a JSON object"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_words(change: dict[str, str], says: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    frame = wire.Plan()
    frame.CopyFrom(GOOD)
    for name, value in change.items():
        setattr(frame, name, value)
    with pytest.raises(UserError, match=says.replace("[", r"\[")):
        codec.from_plan(frame, "a", {"params": tmp_path / "empty", "counters": tmp_path / "empty"})


def test_a_plan_without_a_model_is_refused_in_words() -> None:
    with pytest.raises(UserError, match="it comes without counters, params"):
        codec.from_plan(GOOD, "a", {})


@pytest.mark.parametrize("size", [7, 9])
def test_a_file_of_no_whole_number_of_floats_is_refused(size: int, tmp_path: Path) -> None:
    (tmp_path / "vector").write_bytes(bytes(size))
    with pytest.raises(UserError, match=f"{size} bytes"):
        codec.numbers(tmp_path / "vector", "<f4")


@pytest.mark.parametrize(
    "sums",
    [
        [wire.Sum(name="loss", shape=[2], values=[1.0])],
        [wire.Sum(name="loss", shape=[2**31, 2**31, 2**31], values=[])],
        [wire.Sum(name="loss", shape=[1] * 9, values=[1.0])],
        [wire.Sum(name="loss", shape=[0, 2**32 - 1, 2**32 - 1, 2**32 - 1], values=[])],
        [wire.Sum(name="loss", shape=[1], values=[1.0])] * 2,
    ],
)
def test_sums_that_contradict_their_shape_are_refused(sums: list[wire.Sum]) -> None:
    with pytest.raises(UserError, match="a: metric 'loss'"):
        codec.from_result(wire.Result(sums=sums), "a", None, {}, 0)


@pytest.mark.parametrize("version", ["../../etc", "a b", "v" * 65, "1\n2"])
def test_a_memory_version_that_is_no_plain_name_is_refused(version: str) -> None:
    with pytest.raises(UserError, match="a: memory version"):
        codec.from_result(wire.Result(memory=version), "a", None, {}, 0)


def test_a_hyper_parameter_that_json_does_not_hold_is_the_user_s_mistake() -> None:
    plan = Plan("r", 0, 3, "train", "valid", Broadcast(torch.zeros(0), torch.zeros(0)), {"lr": math.inf})
    with pytest.raises(UserError, match="hyper-parameters of round 3"):
        codec.to_plan(plan, "id", "a")


@pytest.mark.parametrize(
    ("upload", "says"),
    [({"c": torch.zeros(2)}, "finish gives"), ({"delta": torch.zeros(3)}, r"\(3,\) torch.float32 where \(2,\)")],
)
def test_an_upload_that_is_not_as_declared_is_the_strategy_s_mistake(
    upload: dict[str, Tensor], says: str, tmp_path: Path
) -> None:
    reply = Reply("a", 1, upload, torch.zeros(0, dtype=torch.int64))
    with pytest.raises(UserError, match=says):
        codec.put_upload(reply, {"delta": Part(2, "examples")}, wire.Result(), tmp_path / "upload")


@pytest.mark.parametrize("rows", [-1, 2**40 + 1, 2**63 - 1])
def test_a_weight_that_no_number_of_rows_has_is_refused(rows: int) -> None:
    with pytest.raises(UserError, match="a: a weight of"):
        codec.from_result(wire.Result(examples=rows), "a", None, {}, 0)


@given(frame=st.binary(max_size=200))
def test_any_result_gives_a_reply_or_one_line(frame: bytes) -> None:
    try:
        result = wire.Result.FromString(frame)
    except Exception:
        return
    try:
        rows = codec.from_result(result, "a", None, {}, 0).examples
        line = ""
    except UserError as error:
        rows, line = 0, str(error)
    assert "\n" not in line
    assert 0 <= rows <= codec.MOST_ROWS
