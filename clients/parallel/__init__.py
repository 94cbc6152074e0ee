"""One site's training over several processes: what each holds and does, so that the update is that of one process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clients.parallel.ranks import Ranks


def join(rank: int, world: int, port: int, backend: str = "gloo", **rest: Any) -> "Ranks":
    """Joins the ranks of a site; see `clients.parallel.ranks.join`, which imports torch."""
    from clients.parallel import ranks

    return ranks.join(rank, world, port, backend, **rest)
