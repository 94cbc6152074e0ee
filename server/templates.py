"""The files that `hansa provision` writes for people to read and edit."""

from hansa.address import as_ip, is_loopback, join

CONSORTIUM_TOML = """\
# What sites that join later are told. Settled when the consortium was made.
[consortium]
name = "%(name)s"
server = "%(server)s"
"""

SERVER_TOML = """\
# The server of %(name)s. A "#" without a space before a key: it is not in force.

[server]
# One port by which all sites come in, and the server's host as they reach it. A gate there asks for a site's
# certificate, and lets through only what a site has to say. With it, leave session and announce out.
#public = "0.0.0.0:443"
#name = "fl.example.org"
# Where the sites' Flower nodes come in. Flower's control interface is at the same port and asks nobody who they are:
# keep it on loopback. Without public, put a proxy in front that lets only /v1/fleet/ through, by TLS or a tunnel.
flower = "%(flower)s"
# Where the sites' sessions come in, which carry the updates. They ask for a site's certificate.
%(session)s

# Seconds.
[runs]
heartbeat = 5            # between two signs of life
orphan_after = 30        # that a site waits for a server that is gone
max_duration = 604800    # of one start of a run, after which it fails
# Whether a run whose process died goes on by itself; else by hansa run --resume.
auto_resume = true

[flower]
telemetry = false        # true: Flower reports its use to its makers
"""


def listening(host: str, port: int) -> str:
    """The keys of server.toml for the sessions' address: on all interfaces, unless the sites are on this machine."""
    if is_loopback(host):
        return f'session = "{join("127.0.0.1", port)}"'
    ip = as_ip(host)
    everywhere = "::" if ip is not None and ip.version == 6 else "0.0.0.0"
    return (
        f'session = "{join(everywhere, port)}"\n# Their address as the sites reach it.\nannounce = "{join(host, port)}"'
    )
