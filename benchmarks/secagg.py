"""How fast secure aggregation is, beside the bare keystream that it cannot do without.

For each number of sites and parameters a whole attempt is run, all machines in this process, and its sum is held
against the plain one. Printed are, as medians over the sites, the seconds of one (checking keys and sharing, rounding,
masking); those of the coordinator from the last answer to the sum (all there, and one gone after sharing); and what a
site sends. A site that masks goes over n keystreams of 4 bytes a parameter (2 in a ring of 16 bits), and packs. Their
GB in a second of the processor stand beside those of AES-256-CTR and AES-256-GCM in blocks of 256 KB, of NumPy's Philox
and of the operating system's generator, measured in between: other load slows the wall's clock only.
"""

import argparse
import json
import os
import platform
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from privacy.secagg.keystream import BACK_ENDS, CHUNK, TAG, Key, Keystream, fastest
from privacy.secagg.packing import signed, word
from privacy.secagg.quantise import quantise
from privacy.secagg.rehearsal import Rehearsal, founded
from privacy.secagg.ring import Segment, most_levels
from privacy.secagg.terms import Terms, roster_digest, threshold

T = TypeVar("T")


class Spent:
    """Seconds, by what was done: on the wall, and of the processor."""

    def __init__(self) -> None:
        self.walls: defaultdict[str, list[float]] = defaultdict(list)
        self.processor: defaultdict[str, list[float]] = defaultdict(list)

    def on(self, name: str, work: Callable[[], T]) -> T:
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        self.walls[name].append(time.perf_counter() - wall)
        self.processor[name].append(time.process_time() - processor)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--threads", type=int, help="in place of the number that is found to be fastest")
    args = parser.parse_args()
    start = time.perf_counter()
    stream = fastest(time.perf_counter)
    took = time.perf_counter() - start
    stream = Keystream(stream.back_end, args.threads or stream.threads)
    print(f"{platform.machine()}, {os.cpu_count()} cores; {stream}, chosen in {took:.3f} s", flush=True)
    rows = [measure(n, int(p), args.bits, stream) for p in args.parameters for n in args.sites]
    facts = {"back_end": stream.back_end, "threads": stream.threads, "bits": args.bits, "cores": os.cpu_count()}
    print(f"RESULT {json.dumps({**facts, 'load': round(os.getloadavg()[0], 1), 'rows': rows})}")


def measure(n: int, parameters: int, bits: int, stream: Keystream) -> dict[str, float]:
    """Two attempts from the same randomness, step by step: in the second the last site is gone after sharing."""
    both = whole, short = make(n, parameters, bits, stream), make(n, parameters, bits, stream)
    spent, names = Spent(), whole.terms.sites
    adverts, _ = [one.advertise(names) for one in both]
    sent = 0
    for name in names:
        shares = spent.on("share", partial(whole.sites[name].share, adverts))
        short.sites[name].share(adverts)
        for one in both:
            one.coordinator.share(name, shares)
        sent = len(adverts[0]) + len(shares) + 64 + 35 * n  # and the last two messages
    deliveries, _ = [one.coordinator.deliveries() for one in both]
    rng, plain, room = (
        np.random.default_rng(1),
        np.zeros(parameters, word(bits)),
        bytearray(b"0" * (4 * parameters + 999)),
    )
    vector = rng.standard_normal(parameters, dtype=np.float32) * np.float32(0.1)
    for name in names:
        work = partial(quantise, whole.terms, {"delta": vector}, 500, {}, rng.bytes(32), stream)
        update = spent.on("round", work)
        for one in both:
            one.sites[name].receive(deliveries[name])
        short.sites[name].mask(update)
        upload = spent.on("mask", partial(fill, room, whole.sites[name].mask(update)))
        bare(spent)
        whole.coordinator.add(name, upload)
        plain += update.words
        if name != names[-1]:
            short.coordinator.add(name, upload)
        else:
            sent += len(upload)
    finish(spent, "unmask", whole, names, plain)
    if n > threshold(n):
        finish(spent, "unmask_one_gone", short, names[:-1], plain - update.words)
    return row(n, parameters, n * parameters * word(bits).itemsize, sent, spent)


def make(n: int, parameters: int, bits: int, stream: Keystream) -> Rehearsal:
    names, draw = tuple(f"site-{number:03d}" for number in range(n)), random.Random(1).randbytes
    roster, keys = founded(names, draw)
    parts = (Segment("delta", parameters, "examples", 1.0, most_levels(n, "examples", bits)),)
    known = roster_digest(roster, names)
    terms = Terms("run", "train", 1, 1, 1, known, names, threshold(n), bytes(32), 1000, bits, parts, ())
    return Rehearsal(terms, roster, keys, draw, stream)


def fill(room: bytearray, pieces: Iterable[bytes | memoryview]) -> memoryview:
    """Takes an upload as a file would."""
    at = 0
    for piece in pieces:
        room[at : at + len(piece)] = piece
        at += len(piece)
    return memoryview(room)[:at]


def bare(spent: Spent) -> None:
    """What could make masks, 4 MB at a time, on one thread."""
    room, philox = memoryview(bytearray(CHUNK + TAG)), np.random.Philox(1)
    ways: dict[str, Callable[[], object]] = {
        **{name: partial(Keystream(name).fill(Key(bytes(32))), 0, room) for name in BACK_ENDS},
        "philox": lambda: philox.random_raw(CHUNK // 8),
        "secrets": lambda: secrets.token_bytes(CHUNK),
    }
    for name, way in ways.items():
        spent.on(name, lambda: [way() for _ in range(16)])  # noqa: B023


def finish(spent: Spent, what: str, one: Rehearsal, names: tuple[str, ...], plain: np.ndarray) -> None:
    """From the last answer to the sum."""
    consents = one.sign(names, one.coordinator.survivors())
    for name in names:
        one.coordinator.unmask(name, one.sites[name].unmask(consents))
    total = spent.on(what, one.coordinator.total)
    if not np.array_equal(signed(total.words, one.terms.bits), signed(plain, one.terms.bits)):
        raise SystemExit("the sum is not the plain sum")


def row(n: int, parameters: int, masked: int, sent: int, spent: Spent) -> dict[str, float]:
    """What is printed."""
    steps = [name for name in ("share", "round", "mask", "unmask", "unmask_one_gone") if spent.walls[name]]
    seconds = {f"{name}_s": median(spent.walls[name]) for name in steps}
    seconds |= {f"{name}_cpu_s": median(spent.processor[name]) for name in steps}
    speeds = {name: 16 * CHUNK / median(spent.processor[name]) / 1e9 for name in (*BACK_ENDS, "philox", "secrets")}
    speed = masked / median(spent.processor["mask"]) / 1e9
    facts = {
        "sites": n,
        "parameters": parameters,
        **seconds,
        "sent_bytes_per_float": sent / parameters,
        "mask_gb_s": speed,
        **{f"{name}_gb_s": value for name, value in speeds.items()},
        **{f"mask_over_{name}": speed / value for name, value in speeds.items()},
    }
    short = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in facts.items()}
    print("  ".join(f"{name} {value}" for name, value in short.items()), flush=True)
    return short


if __name__ == "__main__":
    main()
