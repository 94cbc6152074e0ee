"""Who may have a session: a Hello held against the run's terms. Pure."""

import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import get_args

from hansa.wire.link_pb2 import Hello, Turned
from hansa.wire.rules import MAJOR, MINOR, Turn, site_uri


@dataclass(frozen=True)
class Terms:
    """What a site's Hello is held against."""

    run: str
    epoch: int  # raised each time that the run's server starts
    sites: Collection[str]
    layout: str  # digest
    strategy: str  # digest
    secret: bytes = field(repr=False)  # of the run: makes the sites' tokens


def token(secret: bytes, run: str, site: str, node: int) -> str:
    """What an invited node shows in its Hello, hex: HMAC-SHA256, so that it is the same after a restart."""
    text = json.dumps([run, site, node], separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def known_site(uris: Collection[str], sites: Collection[str]) -> str | None:
    """The site of the roster that a certificate names."""
    return next((site for site in sites if site_uri(site) in uris), None)


def turned(code: Turn, line: str) -> Turned:
    """The last frame that an unwelcome site gets."""
    assert code in get_args(Turn)
    return Turned(code=code, line=line)


NO_SITE = turned("certificate", "the certificate names no site of this federation; enrol the site, then try again")


def is_early(hello: Hello) -> bool:
    """Whether the site is not ready to train, and so cannot say yet on what."""
    return hello.HasField("waiting") and not hello.layout


def check(hello: Hello, site: str | None, terms: Terms) -> Turned | None:
    """Why a site gets no session, or None.

    Args:
        hello: the site's first frame.
        site: the name that its certificate bears out, if that is on the roster.
        terms: of the run.
    """
    if hello.major != MAJOR:
        older = "the site" if hello.major < MAJOR else "the server"
        mine, yours = f"{MAJOR}.{MINOR}", f"{hello.major}.{hello.minor}"
        return turned("version", f"this site speaks protocol {yours}, the server {mine}; update hansa at {older}")
    if site is None:
        return NO_SITE
    if not hmac.compare_digest(hello.token.encode(), token(terms.secret, hello.run, site, hello.node).encode()):
        return turned("token", f"the invitation is not one for site {site}; wait for the server to invite it again")
    if hello.run != terms.run:
        return turned("run", f"run {hello.run} is not held here: it is over, or at another server")
    if hello.epoch > terms.epoch:
        line = f"this server is of epoch {terms.epoch}, the site has seen {hello.epoch}: another server has taken over"
        return turned("epoch", line)
    if is_early(hello):
        return None
    if hello.layout != terms.layout:
        return turned("layout", "the model's shared tensors differ from the server's; give both the same app and torch")
    if hello.strategy != terms.strategy:
        return turned("strategy", "[strategy] differs from the server's; give both the same app and hansa")
    return None
