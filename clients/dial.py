"""The way to the server that a site's folder names."""

from clients.sitefile import SiteFile
from hansa import dial
from hansa.dial import Way

NODE = "HANSA_NODE"  # the variable in which a run's process finds which of the site's nodes it is of, from 1
SESSIONS = "HANSA_SESSIONS"  # the variable in which a run's process finds where sessions are taken to the server's gate


def way(file: SiteFile) -> Way:
    """The way that a site.toml and the environment name.

    Raises:
        UserError: the environment's proxy is none.
    """
    return dial.way(file.site.server, file.network.proxy)
