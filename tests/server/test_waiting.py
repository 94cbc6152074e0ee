"""What a run says of sites that wait for machines, and how long it waits for them."""

import queue
import time
from typing import Any, cast

import pytest
import torch
from torch import nn

from hansa.layout import Layout
from hansa.records import Broadcast, Part, Plan
from hansa.wire.link_pb2 import Blob, Result, ServerFrame, Waiting
from server.arrivals import Answered, Arrival, Joined
from server.cohort import Rule
from server.deployed import LinkedCohort
from server.link import Links
from server.waiting import Wait, Waits, line_of

LAYOUT = Layout.of(nn.Linear(2, 1, bias=False))
PARTS = {"delta": Part(2, "examples")}


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        (0.0, "waits for machines"),
        (29.0, "waits for machines, expected in 1 min"),
        (5430.0, "waits for machines, expected in 1 h 30 min"),
        (200_000.0, "waits for machines, expected in 2.3 days"),
        (-5.0, "waits for machines"),
        (float("nan"), "waits for machines"),
        (float("inf"), "waits for machines"),
    ],
)
def test_a_wait_is_told_in_the_server_s_own_words(seconds: float, line: str) -> None:
    assert line_of(Waiting(state="queued", starts_in=seconds)) == line


def test_a_state_that_a_newer_site_says_is_not_printed() -> None:
    assert line_of(Waiting(state="\x1b[31mrm -rf")) == "is not ready to train yet"


def test_a_wait_begins_once_and_ends_at_readiness() -> None:
    waits = Waits()
    waits.says("a", Waiting(state="queued"), 10.0)
    waits.gone("a")
    assert waits.now() == {}
    waits.says("a", Waiting(state="queued"), 50.0)
    assert waits.now()["a"].since == 10.0
    waits.says("a", Waiting(), 60.0)
    waits.says("a", Waiting(state="queued"), 70.0)
    assert waits.now()["a"].since == 70.0


class InMemory:
    """A link in memory whose sites are ready when `waits` says so."""

    def __init__(self, waits: Any) -> None:
        self.events: queue.Queue[Arrival] = queue.Queue()
        self.waits, self.ready = waits, {"a", "b"}
        self.sent: list[tuple[str, float]] = []

    def waiting(self) -> dict[str, Wait]:
        return dict(self.waits(self))

    def present(self) -> set[str]:
        return self.ready

    def offer(self, plan: str, vectors: Any) -> list[Blob]:
        return []

    def expect(self, *of: Any) -> None: ...

    def retire(self, plan: str) -> None: ...

    def send(self, site: str, frame: ServerFrame, more: bytes = b"") -> bool:
        if site not in self.ready:
            return False
        self.sent.append((site, frame.plan.deadline))
        data = torch.ones(2).numpy().tobytes() + bytes(8 * LAYOUT.n_counters)
        result = Result(plan=frame.plan.id, round=1, examples=1, memory="1-0")
        self.events.put(Answered(site, result, data))
        return True


def asked(link: InMemory, machines: float, deadline: float = 60.0) -> tuple[LinkedCohort, list[str]]:
    said: list[str] = []
    cohort = LinkedCohort(cast(Links, link), ["a", "b"], PARTS, LAYOUT, deadline, 0.0, said.append, machines)
    sent = Broadcast(torch.zeros(2), torch.zeros(LAYOUT.n_counters, dtype=torch.int64))
    cohort.ask(Plan("run", 7, 1, "train", "valid", sent, {"lr": 0.1}), ["a", "b"])
    return cohort, said


def test_no_plan_goes_out_while_a_site_that_is_asked_waits() -> None:
    looks: list[int] = []

    def waits(link: InMemory) -> dict[str, Wait]:
        looks.append(len(link.sent))
        return {} if len(looks) > 3 else {"b": Wait("waits for machines", time.monotonic())}

    cohort, said = asked(link := InMemory(waits), machines=60.0)
    assert looks[:4] == [0, 0, 0, 0]
    assert said == ["b waits for machines"]  # once
    assert len(cohort.collect(Rule(quorum=2)).sites) == 2
    assert [site for site, _ in link.sent] == ["a", "b"]


@pytest.mark.parametrize(("machines", "since"), [(0.0, 0.0), (30.0, 31.0)])
def test_beyond_the_limit_the_quorum_goes_on_without_it(machines: float, since: float) -> None:
    def waits(link: InMemory) -> dict[str, Wait]:
        return {"b": Wait("waits for machines", time.monotonic() - since)}

    link = InMemory(waits)
    link.ready = {"a"}
    cohort, _ = asked(link, machines)
    aggregate = cohort.collect(Rule(quorum=1))
    assert list(aggregate.sites) == ["a"]


def test_a_deadline_does_not_pass_while_a_site_waits_for_machines() -> None:
    """The one of this round is shorter than the wait; the site joins after it, and is in the sum."""
    begun = time.monotonic()

    def waits(link: InMemory) -> dict[str, Wait]:
        if not link.sent or "b" in link.ready:  # it loses its machines when the plan is out
            return {}
        if time.monotonic() - begun > 1.0:
            link.ready = {"a", "b"}
            link.events.put(Joined("b", 5))
        return {"b": Wait("waits for machines", begun)}

    link = InMemory(waits)
    link.ready = {"a"}
    cohort, _ = asked(link, machines=60.0, deadline=0.5)
    assert set(cohort.collect(Rule(quorum=2)).sites) == {"a", "b"}
