"""Which worker gets which sites."""

from collections.abc import Mapping, Sequence


def shares(sites: Sequence[str], cost: Mapping[str, float], former: Mapping[str, int], workers: int) -> list[list[str]]:
    """Sites for each worker, the longest work first, each to the worker with the least in hand.

    A site stays with its former worker, which has its rows at hand, where that is not far from the least.

    Args:
        sites: to be dealt.
        cost: of a site, in any unit; one of which nothing is known counts as the mean.
        former: site -> worker that had it.
        workers: how many there are.
    """
    known = [cost[site] for site in sites if site in cost]
    usual = sum(known) / len(known) if known else 1.0
    dealt: list[list[str]] = [[] for _ in range(workers)]
    load = [0.0] * workers
    for site in sorted(sites, key=lambda one: (-cost.get(one, usual), one)):
        own = cost.get(site, usual)
        chosen = min(range(workers), key=lambda w: load[w] - (own / 2 if former.get(site) == w else 0.0))
        dealt[chosen].append(site)
        load[chosen] += own
    return dealt


def told(sites: Sequence[str]) -> str:
    """Some sites in words: the first three by name."""
    return ", ".join(sites[:3]) + (f" and {len(sites) - 3} more" if len(sites) > 3 else "")
