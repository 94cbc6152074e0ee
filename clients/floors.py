"""What a site's [policy] asks of each secure sum, in words, for `hansa site doctor`."""

from collections.abc import Iterator

from clients.finding import Finding, ok
from clients.sitefile import PolicyTable
from privacy.secagg.terms import LEAST_SITES, threshold


def look_at_policy(policy: PolicyTable) -> Iterator[Finding]:
    """Each floor with the key that sets it: all are the site's own choice, so none is wrong."""
    for line in (_unprotected(policy), _sites(policy), _clip(policy), _ring(policy)):
        yield ok(f"[policy]: {line}")


def _unprotected(policy: PolicyTable) -> str:
    if policy.allow_unprotected:
        return "the server may see this site's own update where secure aggregation is off (allow_unprotected = true)"
    return "no update leaves without secure aggregation; a run without it is refused (allow_unprotected = false)"


def _sites(policy: PolicyTable) -> str:
    if policy.allow_two_sites:
        return (
            "in a consortium of two a sum is over two sites, each of which then learns the other's update "
            "(allow_two_sites = true), as does a server that has one of them on its side; in a larger one it is over "
            f"{LEAST_SITES} or more"
        )
    asked = next(n for n in range(policy.min_sites, 2 * policy.min_sites) if threshold(n) >= policy.min_sites)
    of = f", so that {asked} must be asked, or [privacy] threshold be set" if asked > policy.min_sites else ""
    return f"a sum is over {policy.min_sites} sites or more (min_sites = {policy.min_sites}){of}"


def _clip(policy: PolicyTable) -> str:
    if policy.max_clip is None:
        return "an update's values may be of any size that [privacy] clip says (max_clip is not set)"
    return f"no value of an update counts for more than {policy.max_clip:g} (max_clip = {policy.max_clip:g})"


def _ring(policy: PolicyTable) -> str:
    return f"an update's values are rounded to rings of {policy.min_ring_bits} bits or more (min_ring_bits)"
