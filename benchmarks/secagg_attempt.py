"""One attempt at secure aggregation with a clock at each step, all machines in this process."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from hansa.records import Part
from hansa.roster import Roster
from privacy.secagg.agreement import Expected, Past
from privacy.secagg.coordinator import Coordinator
from privacy.secagg.keystream import BACK_ENDS, CHUNK, TAG, Key, Keystream
from privacy.secagg.packing import signed, word
from privacy.secagg.quantise import quantise
from privacy.secagg.rehearsal import founded
from privacy.secagg.ring import Segment, most_levels
from privacy.secagg.site import Site
from privacy.secagg.terms import Terms, roster_digest, threshold

T = TypeVar("T")
SITE = ("agree", "advertise", "share", "receive", "quantise", "mask", "sign", "unmask")
SERVER = ("keys", "shares", "add", "consents", "open")


class Spent:
    """Seconds of each machine by what it did: on the wall, and of the processor."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.cpu: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def on(self, who: str, step: str, work: Callable[[], T]) -> T:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.wall[who][step] += time.perf_counter() - wall
        self.cpu[who][step] += time.process_time() - cpu
        return result


class Attempt:
    """Terms of so many sites for one part of so many values, and the machines."""

    def __init__(self, n: int, dim: int, bits: int, stream: Keystream, spent: Spent) -> None:
        names, draw = tuple(f"site-{number:03d}" for number in range(n)), random.Random(1).randbytes
        roster, keys = founded(names, draw)
        parts = (Segment("delta", dim, "examples", 1.0, most_levels(n, "examples", bits)),)
        known = roster_digest(roster, names)
        terms = Terms("run", "train", 1, 1, 1, known, names, threshold(n), bytes(32), 1000, bits, parts, ())
        self.terms, self.stream, self.spent = terms, stream, spent
        self.coordinator, self.sent = Coordinator(terms, roster, stream), Counter[str]()
        expected = Expected(terms.model, {part.name: Part(part.size, part.weight) for part in parts})

        def site(name: str, roster: Roster = roster) -> Site:
            past = Past(terms.run, terms.purpose)
            return Site(name, keys[name], roster, terms.to_bytes(), expected, past, draw, stream)

        self.sites = {name: spent.on(name, "agree", partial(site, name)) for name in names}

    def run(self, gone: int) -> list[str]:
        """All steps; the last sites are gone once they have shared. Returns those that stay."""
        names, dim, bits = list(self.terms.sites), self.terms.size, self.terms.bits
        server, spent = self.coordinator, self.spent
        stay = names[: len(names) - gone]
        for name in names:
            self._say(name, "keys", server.advertise, spent.on(name, "advertise", self.sites[name].advertise))
        adverts = spent.on("server", "keys", server.adverts)
        for name in names:
            shares = spent.on(name, "share", partial(self.sites[name].share, adverts))
            self._say(name, "shares", server.share, shares)
        deliveries = spent.on("server", "shares", server.deliveries)
        plain, room = np.zeros(dim, word(bits)), bytearray(b"0" * (4 * dim + 999))
        rng = np.random.default_rng(1)
        vector = {"delta": rng.standard_normal(dim, dtype=np.float32) * np.float32(0.1)}
        for name in stay:
            spent.on(name, "receive", partial(self.sites[name].receive, deliveries[name]))
            work = partial(quantise, self.terms, vector, 500, {}, rng.bytes(32), self.stream)
            update = spent.on(name, "quantise", work)
            upload = spent.on(name, "mask", lambda: fill(room, self.sites[name].mask(update)))  # noqa: B023
            bare(spent, name, min(len(names) * update.words.nbytes, 1 << 28))
            self._say(name, "add", server.add, upload)
            plain += update.words
        survivors = spent.on("server", "consents", server.survivors)
        for name in stay:
            consent = spent.on(name, "sign", partial(self.sites[name].sign, survivors))
            self._say(name, "consents", server.sign, consent)
        consents = spent.on("server", "consents", server.consents)
        for name in stay:
            opening = spent.on(name, "unmask", partial(self.sites[name].unmask, consents))
            self._say(name, "open", server.unmask, opening)
        total = spent.on("server", "open", server.total)
        if not np.array_equal(signed(total.words, bits), signed(plain, bits)):
            raise SystemExit("the sum is not the plain sum")
        return stay

    def _say(self, name: str, step: str, take: Callable[[str, bytes], None], data: bytes | memoryview) -> None:
        self.sent[name] += len(data)
        self.spent.on("server", step, lambda: take(name, data))


def fill(room: bytearray, pieces: Iterable[bytes | memoryview]) -> memoryview:
    """Takes an upload as a file would."""
    at = 0
    for piece in pieces:
        room[at : at + len(piece)] = piece
        at += len(piece)
    return memoryview(room)[:at]


def bare(spent: Spent, name: str, size: int) -> None:
    """So many bytes of each bare keystream, 256 KB at a time, on one thread."""
    room = memoryview(bytearray(CHUNK + TAG))
    for back_end in BACK_ENDS:
        stream = Keystream(back_end).fill(Key(bytes(32)))
        spent.on(name, f"bare {back_end}", lambda: [stream(i, room) for i in range(-(-size // CHUNK))])  # noqa: B023


def measured(n: int, dim: int, gone: int, bits: int, stream: Keystream) -> dict[str, float]:
    """An attempt's figures, flat: seconds, GB in a second of the processor, bytes."""
    spent = Spent()
    attempt = Attempt(n, dim, bits, stream, spent)
    stay = attempt.run(gone)
    streams = n * attempt.terms.size * word(bits).itemsize
    speeds = {
        way: -(-min(streams, 1 << 28) // CHUNK) * CHUNK / middle(spent.cpu, stay, f"bare {way}") / 1e9
        for way in BACK_ENDS
    }
    mask = streams / middle(spent.cpu, stay, "mask") / 1e9
    sent = median(attempt.sent[name] for name in stay)
    return {
        "site_s": median(sum(spent.wall[name][step] for step in SITE) for name in stay),
        "site_cpu_s": median(sum(spent.cpu[name][step] for step in SITE) for name in stay),
        "server_s": sum(spent.wall["server"].values()),
        "server_cpu_s": sum(spent.cpu["server"].values()),
        **{f"site_{step}_s": middle(spent.wall, stay, step) for step in SITE},
        **{f"server_{step}_s": spent.wall["server"][step] for step in SERVER},
        "mask_gb_s": mask,
        **{f"{way}_gb_s": speed for way, speed in speeds.items()},
        "aes_bound": mask / speeds["ctr"],
        "bytes_up": sent,
        "bytes_ratio": sent / (4 * dim),
    }


def middle(seconds: dict[str, Counter[str]], names: list[str], step: str) -> float:
    """The median over some sites."""
    return median(seconds[name][step] for name in names)
