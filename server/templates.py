"""The files that `hansa provision` writes for people to read and edit."""

from hansa.address import as_ip, is_loopback, join

CONSORTIUM_TOML = """\
# What sites that join later are told. Settled when the consortium was made.
[consortium]
name = "%(name)s"
server = "%(server)s"
gate = %(gate)s             # true: that is the server's public port, by which everything goes
"""

SERVER_TOML = """\
# The server of %(name)s. A "#" without a space before a key: it is not in force.

[server]
%(ways)s

# Seconds.
[runs]
heartbeat = 5            # between two signs of life
orphan_after = 30        # that a site waits for a server that is gone
max_duration = 604800    # of one start of a run, after which it fails
machines = 86400         # that a run waits for a site whose machines are not there yet; 0: it goes on without it
# Whether a run whose process died goes on by itself; else by hansa run --resume.
auto_resume = true

# An app is code, and a part of it runs here too. If only some may that researchers send from elsewhere, list what
# `hansa digest APP` prints of them.
#[apps]
#allowed = ["sha256:..."]

[flower]
telemetry = false        # true: Flower reports its use to its makers
"""


PUBLIC = """\
# One port by which all come in, and the server's host as they reach it. A gate there asks for certificates, and lets
# through only what a site has to say, or one of the consortium's people.
public = "%(public)s"
name = "%(host)s"
# Where Flower listens. It asks nobody who they are: keep it on loopback.
flower = "%(flower)s"\
"""

DIRECT = """\
# Where the sites' Flower nodes come in. Flower's control interface is at the same port and asks nobody who they are:
# keep it on loopback, and put a proxy in front that lets only /v1/fleet/ through, by TLS or a tunnel. Or take one port
# by which all sites come in, and leave session and announce out:
#public = "0.0.0.0:443"
#name = "fl.example.org"
flower = "%(flower)s"
# Where the sites' sessions come in, which carry the updates. They ask for a site's certificate.
%(session)s\
"""


def public(host: str, port: int, flower: int) -> str:
    """The keys of server.toml where all come in by one port; Flower has its own, on loopback."""
    at = {"public": join(_listening(host), port), "host": host, "flower": join("127.0.0.1", flower)}
    return PUBLIC % at


def direct(host: str, port: int) -> str:
    """The keys of server.toml where Flower has a port, and the sessions the next."""
    lines = [f'session = "{join(_listening(host), port + 1)}"']
    if not is_loopback(host):
        lines += ["# Their address as the sites reach it.", f'announce = "{join(host, port + 1)}"']
    return DIRECT % {"flower": join("127.0.0.1", port), "session": "\n".join(lines)}


def _listening(host: str) -> str:
    """Where the server listens that sites know by this host: everywhere, unless they are on this machine."""
    ip = as_ip(host)
    if is_loopback(host):
        return "127.0.0.1"
    return "::" if ip is not None and ip.version == 6 else "0.0.0.0"
