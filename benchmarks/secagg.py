"""How fast secure aggregation is, beside the bare keystream that it cannot do without.

For each number of sites and parameters a whole attempt is run, all machines in this process, and its sum is held
against the plain one. Printed are the seconds of one site (key agreement and shares, rounding, masking; medians), those
of the coordinator from the last answer to the sum (all there, and one site gone after sharing), and what a site sends.
Masking goes over n keystreams of 4 bytes a parameter (2 in a ring of 16 bits): their GB/s stand beside those of
AES-256-CTR and AES-256-GCM on one thread in blocks of 256 KB, NumPy's Philox and the operating system's generator, of
the same minute.
"""

import argparse
import json
import os
import platform
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import numpy as np

from privacy.secagg.keystream import BACK_ENDS, CHUNK, TAG, Key, Keystream, fastest
from privacy.secagg.packing import word
from privacy.secagg.quantise import quantise
from privacy.secagg.rehearsal import Rehearsal, founded
from privacy.secagg.ring import Segment, most_levels
from privacy.secagg.terms import Terms, roster_digest, threshold

T = TypeVar("T")
TIMED = 10  # sites whose seconds are taken; all of them do the work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--threads", type=int, help="in place of the number that is found to be fastest")
    args = parser.parse_args()
    start = time.perf_counter()
    stream = fastest(time.perf_counter)
    choice = time.perf_counter() - start
    if args.threads:
        stream = Keystream(stream.back_end, args.threads)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {stream}, "
        f"chosen in {choice:.3f} s"
    )
    rows = [measure(n, int(p), args.bits, stream) for p in args.parameters for n in args.sites]
    facts = {"back_end": stream.back_end, "threads": stream.threads, "bits": args.bits, "cores": os.cpu_count()}
    print(f"RESULT {json.dumps({**facts, 'load': round(os.getloadavg()[0], 1), 'rows': rows})}")


def measure(n: int, parameters: int, bits: int, stream: Keystream) -> dict[str, float]:
    """Two attempts from the same randomness, step by step: in the second the last site is gone after sharing."""
    whole, short = (make(n, parameters, bits, stream) for _ in range(2))
    names, seconds, shares = (
        whole.terms.sites,
        {"share": list[float](), "round": list[float](), "mask": list[float]()},
        b"",
    )
    adverts = [one.advertise(names) for one in (whole, short)]
    for name in names:
        shares = timed(seconds["share"], partial(whole.sites[name].share, adverts[0]))
        short.sites[name].share(adverts[1])
        for one in (whole, short):
            one.coordinator.share(name, shares)
    deliveries = whole.coordinator.deliveries()
    short.coordinator.deliveries()
    rng, plain, upload = np.random.default_rng(1), np.zeros(parameters, word(bits)), memoryview(b"")
    room = bytearray(b"0" * (4 * parameters + 1000))
    vector = rng.standard_normal(parameters, dtype=np.float32) * np.float32(0.1)
    for name in names:
        work = partial(quantise, whole.terms, {"delta": vector}, 500, {}, rng.bytes(32), stream)
        update = timed(seconds["round"], work)
        for one in (whole, short):
            one.sites[name].receive(deliveries[name])
        upload = timed(seconds["mask"], partial(fill, room, whole.sites[name].mask(update)))
        short.sites[name].mask(update)
        plain += update.words
        whole.coordinator.add(name, upload)
        if name != names[-1]:
            short.coordinator.add(name, upload)
    bare = raw()
    unmasking = finish(whole, names)
    mask_bits = 8 * word(bits).itemsize
    if not np.array_equal(whole.coordinator._words << mask_bits - bits, plain << mask_bits - bits):
        raise SystemExit("the sum is not the plain sum")
    gone = finish(short, names[:-1]) if n - 1 >= short.terms.threshold else None
    speed = n * parameters * word(bits).itemsize / statistics.median(seconds["mask"]) / 1e9
    rest = len(adverts[0][0]) + len(shares) + 64 + 35 * n
    row = {
        "sites": n,
        "parameters": parameters,
        "site_share_s": statistics.median(seconds["share"][:TIMED]),
        "site_round_s": statistics.median(seconds["round"][:TIMED]),
        "site_mask_s": statistics.median(seconds["mask"]),
        "unmask_s": unmasking,
        "unmask_one_gone_s": gone,
        "bytes_per_float": (len(upload) + rest) / parameters,
        "mask_gb_s": speed,
        **{f"{name}_gb_s": value for name, value in bare.items()},
        **{f"mask_over_{name}": speed / value for name, value in bare.items()},
    }
    row = {
        name: value if value is None or isinstance(value, int) else float(f"{value:.4g}") for name, value in row.items()
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def make(n: int, parameters: int, bits: int, stream: Keystream) -> Rehearsal:
    names, draw = tuple(f"site-{number:03d}" for number in range(n)), random.Random(1).randbytes
    roster, keys = founded(names, draw)
    parts = (Segment("delta", parameters, "examples", 1.0, most_levels(n, "examples", bits)),)
    terms = Terms("run", "train", 1, 1, 1, roster_digest(roster), names, threshold(n), bytes(32), 1000, bits, parts, ())
    return Rehearsal(terms, roster, keys, draw, stream)


def fill(room: bytearray, pieces: Iterable[bytes | memoryview]) -> memoryview:
    """Takes an upload as a file would."""
    at = 0
    for piece in pieces:
        room[at : at + len(piece)] = piece
        at += len(piece)
    return memoryview(room)[:at]


def finish(one: Rehearsal, names: tuple[str, ...]) -> float:
    """Seconds from the last answer to the sum."""
    consents = one.sign(names, one.coordinator.survivors())
    for name in names:
        one.coordinator.unmask(name, one.sites[name].unmask(consents))
    spent: list[float] = []
    timed(spent, one.coordinator.total)
    return spent[0]


def raw() -> dict[str, float]:
    """GB/s of what could make masks, on one thread."""
    room = memoryview(bytearray(CHUNK + TAG))
    philox = np.random.Philox(1)
    ways: dict[str, Callable[[], object]] = {
        **{name: partial(Keystream(name).fill(Key(bytes(32))), 0, room) for name in BACK_ENDS},
        "philox": lambda: philox.random_raw(CHUNK // 8),
        "secrets": lambda: secrets.token_bytes(CHUNK),
    }
    speeds = {}
    for name, way in ways.items():
        spent: list[float] = []
        for _ in range(40):
            timed(spent, partial(repeated, way, 8))
        speeds[name] = 8 * CHUNK / statistics.median(spent) / 1e9
    return speeds


def repeated(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def timed(spent: list[float], work: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = work()
    spent.append(time.perf_counter() - start)
    return result


if __name__ == "__main__":
    main()
