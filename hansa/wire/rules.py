"""The rules that both ends of a session keep: version, names of the calls, sizes of messages, time-outs."""

from typing import Literal

MAJOR, MINOR = 1, 2

SESSION, DOWNLOAD, HAVE, UPLOAD = "Session", "Download", "Have", "Upload"
SERVICE = "hansa.Link"
SESSION_KEY, PLAN_KEY, OFFSET_KEY = "hansa-session", "hansa-plan", "hansa-offset"  # metadata of bulk calls

CHUNK = 1 << 20  # bytes of one bulk message
INLINE = 1 << 20  # bytes of an upload, or of all vectors of a plan, up to which they are in the frame itself
LARGEST_FRAME = 4 << 20  # bytes of one message of any kind

HEARTBEAT = 5.0  # seconds
MISSED = 3  # beats after which the other end is gone
ORPHAN_AFTER = 30.0  # seconds without the server after which a site gives up

# Why a site is turned away: another major; a certificate that names no site of the roster; a token that is not that
# site's; a run that this server does not hold; a server that has been replaced; the site's session lives; another
# model; another algorithm; a frame that makes no sense.
Turn = Literal["version", "certificate", "token", "run", "epoch", "here", "layout", "strategy", "frame"]

# Also what a site answers to an invitation while another of its nodes has the same run in hand.
HERE: Turn = "here"

# gRPC closes a connection on which nothing comes back: a firewall on the way may have forgotten it.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.max_send_message_length", LARGEST_FRAME),
)


def method(name: str) -> str:
    """The path of a call, e.g. `/hansa.Link/Session`."""
    return f"/{SERVICE}/{name}"


def site_uri(site: str) -> str:
    """The URI that a site's certificate carries as a subject alternative name."""
    return f"hansa://site/{site}"
