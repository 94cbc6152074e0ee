"""Terms: one encoding, no contradiction, and nothing that a digest leaves out."""

import dataclasses
import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import UserError
from privacy.secagg.coding import Malformed
from privacy.secagg.ring import Segment
from privacy.secagg.terms import KIND, Scalars, Terms, threshold

TERMS = Terms(
    run="run",
    purpose="train",
    epoch=1,
    round=2,
    attempt=3,
    roster=b"r" * 32,
    sites=("east", "north", "süd", "west"),
    threshold=3,
    model=b"m" * 32,
    rows=1000,
    bits=32,
    parts=(Segment("delta", 10, "examples", 1.5, 1000), Segment("c", 5, "uniform", 0.1, 7)),
    scalars=(Scalars("loss", 2), Scalars("auc", 2048)),
)
CHANGES: dict[str, Any] = {
    "run": "run2",
    "purpose": "test",
    "epoch": 2,
    "round": 3,
    "attempt": 4,
    "roster": b"s" * 32,
    "sites": ("east", "north", "west"),
    "threshold": 4,
    "model": b"n" * 32,
    "rows": 1001,
    "bits": 24,
    "parts": (Segment("delta", 10, "examples", 1.5, 1001), TERMS.parts[1]),
    "scalars": TERMS.scalars[:1],
    "starts": ("", "1-ab", "1-ab", ""),
}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(
    run=NAMES,
    mark=st.tuples(*[st.integers(0, 2**32 - 1)] * 3),
    sites=st.lists(NAMES, min_size=1, max_size=6, unique=True).map(sorted),
    rows=st.integers(1, 2**40),
    bounds=st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=3),
    bits=st.sampled_from([24, 32]),
)
def test_terms_are_read_as_they_were_written(
    run: str, mark: tuple[int, int, int], sites: list[str], rows: int, bounds: list[float], bits: int
) -> None:
    parts = tuple(Segment(f"p{i}", i, "examples", bound, 9) for i, bound in enumerate(bounds))
    terms = Terms(run, "test", *mark, b"r" * 32, tuple(sites), len(sites), b"m" * 32, rows, bits, parts, ())
    assert Terms.from_bytes(terms.to_bytes()) == terms


def test_a_change_of_any_field_is_a_change_of_the_digest() -> None:
    assert CHANGES.keys() == {field.name for field in dataclasses.fields(Terms)}
    changed = [dataclasses.replace(TERMS, **{name: value}) for name, value in CHANGES.items()]
    part: dict[str, Any] = {"name": "d", "size": 11, "weight": "uniform", "bound": 1.25, "levels": 999}
    parts = [(dataclasses.replace(TERMS.parts[0], **{name: value}), TERMS.parts[1]) for name, value in part.items()]
    changed += [dataclasses.replace(TERMS, parts=both) for both in parts]
    assert len({terms.digest for terms in [TERMS, *changed]}) == 1 + len(changed)


def test_terms_that_end_too_early_or_too_late_are_malformed() -> None:
    data = TERMS.to_bytes()
    for end in range(len(data)):
        with pytest.raises(Malformed):
            Terms.from_bytes(data[:end])
    with pytest.raises(Malformed, match="1 bytes too many"):
        Terms.from_bytes(data + b"\0")


@given(st.integers(0, len(TERMS.to_bytes()) - 1), st.integers(1, 255))
def test_terms_with_a_byte_changed_are_other_terms_or_none(at: int, change: int) -> None:
    """What is read is written in the same bytes again: no two encodings are of the same terms."""
    data = bytearray(TERMS.to_bytes())
    data[at] ^= change
    try:
        found = Terms.from_bytes(bytes(data))
    except (Malformed, UserError):
        return
    assert found.to_bytes() == data


def test_a_list_of_a_great_length_makes_nothing() -> None:
    head = KIND + b"\x00\x00" + bytes(12) + bytes(32)
    with pytest.raises(Malformed, match="a list of 65535, at most 1024 are allowed"):
        Terms.from_bytes(head + struct.pack(">H", 65535))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sites": ()}, "0 sites"),
        ({"sites": ("west", "east")}, "sites that are not in order, each once"),
        ({"sites": ("east", "east")}, "sites that are not in order, each once"),
        ({"threshold": 5}, "a threshold of 5 of 4 sites"),
        ({"threshold": 0}, "a threshold of 0 of 4 sites"),
        ({"rows": 0}, "max_weight = 0; give 1 to"),
        ({"bits": 17}, "ring_bits = 17; choose one of 16, 20, 24, 32"),
        ({"parts": TERMS.parts[:1] * 2}, "two of one name"),
        ({"scalars": TERMS.scalars[:1] * 2}, "two of one name"),
        ({"model": b""}, "not of 32 bytes"),
        ({"epoch": 2**32}, "not of 32 bits"),
        ({"run": "r" * 256}, "more than 255 bytes"),
        ({"parts": (Segment("delta", 2**35, "uniform", 1.0, 1),)}, "at most 17179869184 can be summed"),
        *[
            ({"parts": (Segment("delta", 1, "uniform", bound, 1),)}, "a bound of")
            for bound in (0.0, -1.0, float("nan"), float("inf"), 1e31)
        ],
        ({"parts": (Segment("delta", 1, "uniform", 1.0, 0),)}, "0 levels; give 1 or more"),
    ],
)
def test_terms_that_contradict_themselves_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        dataclasses.replace(TERMS, **change)


def test_thresholds_are_those_of_the_paper() -> None:
    """Bonawitz et al. 2017, section 6.2: t > 2n/3 against a server that lies."""
    assert {n: threshold(n) for n in (3, 4, 5, 10, 100)} == {3: 3, 4: 3, 5: 4, 10: 7, 100: 67}


@pytest.mark.parametrize("n", range(3, 11))
def test_two_openings_share_more_honest_sites_than_there_are_traitors(n: int) -> None:
    """Any two sets of the threshold have more than n / 3 sites in common, counted out."""
    t = threshold(n)
    least = min(len(set(range(t)) & set(other)) for other in itertools.combinations(range(n), t))
    assert least > n / 3


def test_places_cover_everything_once() -> None:
    assert TERMS.places == {"delta": slice(0, 10), "c": slice(10, 15)}
    places = list(TERMS.scalar_places.values())
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert places[-1].stop == 4 + 2 + 2 + 2048


@pytest.mark.parametrize("name", ["run", "purpose", "round", "model", "starts", "rows", "bits", "parts", "scalars"])
def test_an_update_is_of_one_round_of_one_model(name: str) -> None:
    """In another attempt at it, even by another start of the server, it may be masked again, and nowhere else."""
    assert dataclasses.replace(TERMS, epoch=9, attempt=9).form == TERMS.form
    assert dataclasses.replace(TERMS, **{name: CHANGES[name]}).form != TERMS.form


def test_metrics_are_bounded_together() -> None:
    scalars = (Scalars("a", 1 << 19), Scalars("b", 1 << 19))
    dataclasses.replace(TERMS, scalars=scalars)
    with pytest.raises(UserError, match="metrics of 1048577 numbers in all; at most 1048576"):
        dataclasses.replace(TERMS, scalars=(*scalars, Scalars("c", 1)))


def test_who_starts_alike() -> None:
    terms = dataclasses.replace(TERMS, starts=("2-a", "1-a", "2-a", "2-a"))
    names = terms.sites
    assert [terms.start(name) for name in names] == ["2-a", "1-a", "2-a", "2-a"]
    assert [sorted(terms.alike(name)) for name in names[:2]] == [[0, 2, 3], [1]]
    assert TERMS.alike(names[1]) == {0, 1, 2, 3}
    with pytest.raises(UserError, match="versions of memory for 1 of 4 sites"):
        dataclasses.replace(TERMS, starts=("1-a",))
