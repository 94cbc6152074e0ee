"""Sites and a server under secure aggregation in one thread: the real halves, frames handed over without a network."""

import os
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from clients.ground import Ground
from clients.past import Remembered
from clients.secure import SecureHalf
from clients.sitefile import PolicyTable
from clients.sumrules import Said as AppSaid
from hansa.layout import Layout
from hansa.records import Broadcast, Part, Plan
from hansa.wire import link_pb2 as wire
from hansa.wire.link_pb2 import Result, ServerFrame, SiteFrame
from privacy.config import PrivacyTable
from privacy.secagg.keystream import Keystream
from privacy.secagg.rehearsal import founded
from privacy.secure import Secure
from server.arrivals import Answered, Arrival, Declined, Joined, Said, Shapes
from server.link import Links
from server.securecohort import Ground as ServerGround
from server.securecohort import SecureCohort
from server.transcript import Transcript
from server.waiting import Wait

RUN, SIZE = "run", 1000
PARTS = {"delta": Part(SIZE, "examples")}
SUMS: Shapes = (("train/loss", (2,)), ("valid/loss", (2,)), ("test/loss", (2,)))


@dataclass
class Room:
    """A run.

    Args:
        folder: for what the ends remember.
        names: of the sites.
        policies: of some sites, where they are not the default.
    """

    folder: Path
    names: tuple[str, ...] = ("a", "b", "c", "d")
    policies: Mapping[str, PolicyTable] = field(default_factory=dict)
    bits: int = 32
    remembers: bool = False  # the strategy keeps memory at the sites
    large: bool = False  # updates go by files, as those do that are too large for a frame
    events: "queue.Queue[Arrival]" = field(default_factory=queue.Queue)
    sums: dict[str, Shapes] = field(default_factory=dict)  # of some sites, where they are not SUMS
    results: dict[str, Result] = field(default_factory=dict)  # what training gives
    trained: list[str] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)  # what the server says of sites
    logs: dict[str, list[str]] = field(default_factory=dict)  # of the sites
    notes: list[tuple[Any, ...]] = field(default_factory=list)  # of the sites' audit files
    before: Callable[[str, str], None] = lambda site, step: None  # is told what a site is about to be asked
    lie: Callable[[str, ServerFrame], None] = lambda site, frame: None  # may change what a site is asked,
    twist: Callable[[str, SiteFrame], None] = lambda site, frame: None  # and what it says

    def __post_init__(self) -> None:
        self.roster, self.keys = founded(self.names, os.urandom)
        self.halves = {name: self.half(name) for name in self.names}
        for number, name in enumerate(self.names):
            delta = np.random.default_rng(number).normal(0, 0.1, SIZE).astype("<f4")
            self.results[name] = result(delta, 10 * (number + 1))
        self.cohort = self.server(1)

    def half(self, name: str) -> SecureHalf:
        """A site's process, begun now."""
        past, log = Remembered(self.folder / name, RUN, self.said.text), self.logs.setdefault(name, [])
        policy = self.policies.get(name, PolicyTable())

        def note(*said: Any, **facts: Any) -> None:
            self.notes.append((name, *said[1:], facts))

        who = RUN, name, self.keys[name], self.roster, policy
        ways = note, log.append, Keystream(), lambda version: True
        return SecureHalf(Ground(*who, self.said, past, *ways))

    @property
    def said(self) -> AppSaid:
        return AppSaid(self.table, 100)

    @property
    def table(self) -> PrivacyTable:
        return PrivacyTable(secure=True, clip=0.5, max_weight=100, ring_bits=self.bits)

    def restart(self, name: str) -> None:
        """A site's process is gone, and there is another."""
        self.halves[name] = self.half(name)
        self.events.put(Joined(name, 0, self.sums.get(name, SUMS)))

    def server(self, epoch: int) -> SecureCohort:
        """A start of the run at the server."""
        transcript = Transcript(self.folder / "server")
        (self.folder / "server").mkdir(exist_ok=True)
        ground = ServerGround(Secure(self.table, PARTS, 0, self.remembers), self.roster, epoch, transcript, Keystream())
        layout = Layout.of(nn.Linear(SIZE, 1, bias=False))
        self.events = queue.Queue()
        cohort = SecureCohort(cast(Links, self), self.names, ground, layout, 30.0, 0.0, self.told.append)
        for name in self.names:
            if name not in self.away:
                self.events.put(Joined(name, 0, self.sums.get(name, SUMS)))
        return cohort

    # what the cohort asks of the link

    def present(self) -> set[str]:
        return set(self.names) - self.away

    def waiting(self) -> dict[str, Wait]:
        return {}

    def offer(self, plan: str, vectors: Mapping[str, memoryview]) -> list[wire.Blob]:
        return [wire.Blob(name=name, size=one.nbytes, data=bytes(one)) for name, one in vectors.items()]

    def expect(self, plan: str, floats: int, integers: int, masked: int = 0) -> None:
        assert (floats, integers) == (0, 0)

    def retire(self, plan: str) -> None: ...

    def send(self, site: str, frame: ServerFrame, more: bytes = b"") -> bool:
        frame = ServerFrame.FromString(frame.SerializeToString() + more)
        self.before(site, frame.secure.step if frame.HasField("secure") else "plan")
        self.lie(site, frame)
        if site in self.away:
            return False
        half = self.halves[site]
        if frame.HasField("secure"):
            self.take(site, half.hear(frame.secure))
        else:
            said, work = half.begin(frame.plan, PARTS, self.sums.get(site, SUMS))
            self.take(site, said)
            if work:
                self.trained.append(site)
                half.take(frame.plan, *self.answer(site))
        if half.may_mask():
            found = half.mask(self.folder / f"{site}.masked", 0 if self.large else 1 << 30)
            assert found is not None
            assert found[1] == self.large
            half.sent(found[0])
            self.take(site, found[0])
        return True

    def answer(self, site: str) -> tuple[Result, Mapping[str, Part], Path]:
        """What the training process hands over."""
        given, file = Result.FromString(self.results[site].SerializeToString()), self.folder / f"{site}.floats"
        if self.large:
            file.write_bytes(given.upload.data)
            given.ClearField("upload")
        return given, PARTS, file

    def take(self, site: str, frame: SiteFrame | None) -> None:
        """What a site says reaches the server."""
        if frame is None:
            return
        frame = SiteFrame.FromString(frame.SerializeToString())
        self.twist(site, frame)
        match frame.WhichOneof("frame"):
            case "secure":
                self.events.put(Said(site, frame.secure))
            case "refused":
                self.events.put(Declined(site, frame.refused))
            case "result":
                upload = self.folder / f"{site}.masked" if self.large else frame.result.upload.data
                self.events.put(Answered(site, frame.result, upload))


def result(delta: "np.ndarray[Any, Any]", rows: int, **sums: tuple[float, ...]) -> Result:
    """What a training process gives."""
    found = Result(examples=rows, memory="1-0")
    found.upload.data = delta.tobytes()
    for name, values in (sums or {"train_loss": (1.0, 2.0), "valid_loss": (0.5, 1.0)}).items():
        found.sums.add(name=name.replace("_", "/", 1), shape=[len(values)], values=values)
    return found


def plan(round: int = 1, kind: str = "train", split: str = "valid") -> Plan:
    sent = Broadcast(torch.full((SIZE,), float(round)), torch.zeros(0, dtype=torch.int64))
    return Plan(RUN, 7, round, kind, split, sent, {"lr": 0.1})  # type: ignore[arg-type]
