"""How fast secure aggregation is: a site's seconds and the server's, beside bare AES, and beside Flower's SecAgg+.

For each number of sites, of values and of dropouts a whole attempt is run, all machines in this process, and its sum is
held against the plain one. The sites that drop out do so once they have shared: their uploads never come.

`site_s` is all that one site does: it reads the terms, advertises, shares, receives, rounds, masks, signs and opens;
the median over the sites that stay. `server_s` is all that the coordinator does: it checks keys and passes them on,
passes on shares, adds the uploads, checks signatures, and from the openings takes the masks off the sum; each message
that it reads is in it, what a site does meanwhile is not. A file, a socket or a process more is in neither. Each is on
the wall; `_cpu_s` is of the processor, which other work on the machine slows less. Rates are GB in a second of the
processor: `mask_gb_s` of the n keystreams of 4 bytes a value (2 in a ring of 16 bits) that a site goes over, adds and
packs; `ctr_gb_s` and `gcm_gb_s` of the bare ones, the same bytes up to 256 MB, at each site after its masking.
`aes_bound` is the first over the second. `bytes_up` is what one site sends in all; `bytes_ratio` is that over plain
float32.

`--peer flower` runs Flower's SecAgg+ in the same sitting, of the same sites, values, dropouts and threshold, with every
pair of sites connected, as here (`flower_secagg.py`); `peer_site_s` and `peer_server_s` are of the same meaning, and
the ratios are of the wall.
"""

import argparse
import json
import os
import platform
import time
from itertools import product
from statistics import median

import numpy as np
from secagg_attempt import measured

from privacy.secagg.keystream import Keystream, fastest
from privacy.secagg.ring import RINGS
from privacy.secagg.terms import threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--dim", type=float, nargs="+", default=[1e6], help="values of an update")
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0], help="share of the sites that are gone")
    parser.add_argument("--bits", type=int, default=32, choices=RINGS, help="of the ring")
    parser.add_argument("--threads", type=int, help="for masks, in place of two")
    parser.add_argument("--peer", choices=["flower"])
    args = parser.parse_args()
    start = time.perf_counter()
    stream = fastest(time.perf_counter)
    took = time.perf_counter() - start
    stream = Keystream(stream.back_end, args.threads or stream.threads)
    print(f"{platform.machine()}, {os.cpu_count()} cores; {stream}, chosen in {took:.3f} s", flush=True)
    for dim, n, share in product(args.dim, args.sites, args.dropouts):
        report(n, int(dim), round(n * share), args.bits, stream, args.peer)


def report(n: int, dim: int, gone: int, bits: int, stream: Keystream, peer: str | None) -> None:
    """Prints one setting's figures."""
    setting = {"sites": n, "dim": dim, "gone": gone, "threshold": threshold(n), "bits": bits}
    if n - gone < threshold(n):
        raise SystemExit(f"{gone} of {n} sites are gone, and {threshold(n)} are needed: lower --dropouts")
    load, found = os.getloadavg()[0], measured(n, dim, gone, bits, stream)
    if peer:
        found |= beside(found, n, dim, gone)
    facts = {**setting, "back_end": stream.back_end, "threads": stream.threads, "load": round(load, 1), **found}
    short = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in facts.items()}
    print("  ".join(f"{name} {value}" for name, value in short.items()))
    print(f"RESULT {json.dumps(short)}", flush=True)


def beside(found: dict[str, float], n: int, dim: int, gone: int) -> dict[str, float]:
    """What Flower takes for the same, and how many times as long that is."""
    from flower_secagg import attempt

    vector = np.random.default_rng(1).standard_normal(dim, dtype=np.float32) * np.float32(0.1)
    sites, server, sent = attempt(n, gone, threshold(n), vector)
    peer = {
        "peer_site_s": median(site.wall for site in sites),
        "peer_site_cpu_s": median(site.cpu for site in sites),
        "peer_server_s": server.wall,
        "peer_server_cpu_s": server.cpu,
    }
    ratios = {name.replace("peer_", "").replace("_s", "_ratio"): took / found[name[5:]] for name, took in peer.items()}
    return {**peer, "peer_bytes_up": sent, **ratios}


if __name__ == "__main__":
    main()
