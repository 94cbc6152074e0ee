"""What all sites of an attempt must agree on before they send anything: its digest is under every signature."""

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self

from hansa.errors import UserError
from hansa.roster import Roster
from privacy.secagg import coding
from privacy.secagg.coding import MOST_SITES, Malformed, Reader
from privacy.secagg.ring import RINGS, WEIGHTS, Segment, check_fit

KIND = b"hansa/secagg/terms/2\n"
LEAST_SITES = 3  # of a sum: of two sites each knows the other's part
MOST_ROWS, MOST_VALUES, MOST_SCALARS, MOST_PARTS = 1 << 40, 1 << 34, 1 << 20, 256


@dataclass(frozen=True)
class Scalars:
    """Metric sums of one name, in Z_2^64."""

    name: str
    size: int


@dataclass(frozen=True)
class Terms:
    """The terms of one attempt at one round.

    Raises:
        UserError: they contradict themselves, or the sum would not fit the ring.
    """

    run: str
    purpose: str  # what the round is for, e.g. "train": each has rounds of its own
    epoch: int
    round: int
    attempt: int
    roster: bytes  # digest of what the consortium's signed roster says of the sites
    sites: tuple[str, ...]  # that are asked, sorted; a site's number is its place here
    threshold: int  # sites without which nothing is opened
    model: bytes  # digest of the global model, so that all sites train the same one
    rows: int  # of a site beyond which its weight does not grow
    bits: int  # of the ring
    parts: tuple[Segment, ...]
    scalars: tuple[Scalars, ...]
    starts: tuple[str, ...] = ()  # the version of memory from which each site starts; none: all start without

    def __post_init__(self) -> None:
        if problems := [f"[privacy]: {problem}" for problem in self._problems()]:
            raise UserError(*problems)
        for part in self.parts:
            check_fit(part, len(self.sites), self.bits)

    @property
    def mark(self) -> tuple[int, int, int]:
        """The place of the attempt in its run: it only grows."""
        return self.epoch, self.round, self.attempt

    @property
    def form(self) -> tuple[object, ...]:
        """All that an update's whole numbers depend on: the same in a new attempt at a round, and in nothing else."""
        work = self.run, self.purpose, self.round, self.model, self.starts
        return *work, self.rows, self.bits, self.parts, self.scalars

    def start(self, site: str) -> str:
        """The version of memory from which a site starts; empty: without."""
        return self.starts[self.sites.index(site)] if self.starts else ""

    def alike(self, site: str) -> frozenset[int]:
        """The sites that start from the same version as one of them."""
        own, starts = self.start(site), self.starts or ("",) * len(self.sites)
        return frozenset(number for number, start in enumerate(starts) if start == own)

    @property
    def size(self) -> int:
        """Values of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def places(self) -> dict[str, slice]:
        """Where each part lies among the values of all."""
        ends = accumulate(part.size for part in self.parts)
        return {part.name: slice(end - part.size, end) for part, end in zip(self.parts, ends, strict=True)}

    @property
    def scalar_places(self) -> dict[str, slice]:
        """Where lie: the site's rows, whether it gave nothing, and metric sums.

        Where vectors are summed also: its weight, whether that was cut, clipped values by part.
        """
        sizes = {"rows": 1, "absent": 1}
        sizes |= {"weight": 1, "heavy": 1, "clipped": len(self.parts)} if self.parts else {}
        sizes |= {f"sum {scalar.name}": scalar.size for scalar in self.scalars}
        ends = accumulate(sizes.values())
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256."""
        return hashlib.sha256(self.to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """The one encoding of these terms."""
        parts = [
            coding.text(p.name) + struct.pack(">QBdI", p.size, WEIGHTS.index(p.weight), p.bound, p.levels)
            for p in self.parts
        ]
        scalars = [coding.text(s.name) + struct.pack(">I", s.size) for s in self.scalars]
        return b"".join(
            [
                KIND,
                coding.text(self.run),
                coding.text(self.purpose),
                struct.pack(">III", self.epoch, self.round, self.attempt),
                self.roster,
                *_list([coding.text(site) for site in self.sites]),
                struct.pack(">H", self.threshold),
                self.model,
                struct.pack(">QB", self.rows, self.bits),
                *_list(parts),
                *_list(scalars),
                *_list([coding.text(start) for start in self.starts]),
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` writes.

        Raises:
            Malformed: not of this form.
            UserError: terms that contradict themselves, or a sum that would not fit.
        """
        reader = Reader(data, KIND)
        run, purpose = reader.text(), reader.text()
        epoch, round, attempt = (reader.number("I") for _ in range(3))
        roster, sites = reader.take(32), tuple(reader.text() for _ in range(reader.count(MOST_SITES)))
        threshold, model = reader.number("H"), reader.take(32)
        rows, bits = reader.number("Q"), reader.number("B")
        parts = tuple(_part(reader) for _ in range(reader.count(MOST_PARTS)))
        scalars = tuple(Scalars(reader.text(), reader.number("I")) for _ in range(reader.count(MOST_PARTS)))
        starts = tuple(reader.text() for _ in range(reader.count(MOST_SITES)))
        reader.end()
        attempt_at = run, purpose, epoch, round, attempt, roster, sites, threshold, model
        return cls(*attempt_at, rows, bits, parts, scalars, starts)

    def _problems(self) -> list[str]:
        n, parts, sums = len(self.sites), [part.name for part in self.parts], [scalar.name for scalar in self.scalars]
        names, size = (
            (self.run, self.purpose, *self.sites, *parts, *sums, *self.starts),
            sum(s.size for s in self.scalars),
        )
        short = all(len(name.encode()) < 256 for name in names)
        rules = [
            (short, "a name of more than 255 bytes"),
            (all(0 <= number < 1 << 32 for number in self.mark), "epoch, round or attempt is not of 32 bits"),
            (len(self.roster) == len(self.model) == 32, "a digest that is not of 32 bytes"),
            (1 <= n <= MOST_SITES, f"{n} sites; secure aggregation takes 1 to {MOST_SITES}"),
            (list(self.sites) == sorted(set(self.sites)), "sites that are not in order, each once"),
            (1 <= self.threshold <= n, f"a threshold of {self.threshold} of {n} sites"),
            (self.bits in RINGS, f"ring_bits = {self.bits}; choose one of {', '.join(map(str, RINGS))}"),
            (1 <= self.rows <= MOST_ROWS, f"max_weight = {self.rows}; give 1 to {MOST_ROWS} rows"),
            (len(parts) == len(set(parts)) <= MOST_PARTS, "too many parts, or two of one name"),
            (len(sums) == len(set(sums)) <= MOST_PARTS, "too many metric sums, or two of one name"),
            (self.size <= MOST_VALUES, f"{self.size} values; at most {MOST_VALUES} can be summed"),
            (
                all(s.size >= 0 for s in self.scalars) and size <= MOST_SCALARS,
                f"metrics of {size} numbers in all; at most {MOST_SCALARS} can be summed",
            ),
            (len(self.starts) in (0, n), f"versions of memory for {len(self.starts)} of {n} sites"),
        ]
        return [problem for good, problem in rules if not good] + [w for part in self.parts for w in part.problems]


def threshold(sites: int) -> int:
    """The least number of sites that may open a sum: more than two thirds.

    Two sets of that many have more than a third of the sites in common. A server that has fewer than a third of them on
    its side can therefore not have two different sums of one round opened.
    """
    return 2 * sites // 3 + 1


def roster_digest(roster: Roster, sites: Iterable[str]) -> bytes:
    """By which terms name what the consortium's roster says of some sites: who they are, and by which keys they sign.

    Others may join and certificates be renewed in the course of a run, while some sites have the new edition already.
    """
    keys = {member.name: member.sign for member in roster.sites}
    said = [roster.consortium, roster.ca, [[site, keys.get(site, "")] for site in sorted(sites)]]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).digest()


def _list(items: list[bytes]) -> list[bytes]:
    return [struct.pack(">H", len(items)), *items]


def _part(reader: Reader) -> Segment:
    name, size, weight = reader.text(), reader.number("Q"), reader.number("B")
    if weight >= len(WEIGHTS):
        raise Malformed(f"a weight of kind {weight}")
    return Segment(name, size, WEIGHTS[weight], reader.real(), reader.number("I"))
