"""An HTTP proxy on the way to the server: how it is written, and how a connection goes through it (RFC 9110, 9.3.6)."""

import base64
import re
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote, urlsplit

import h11
from pydantic import BeforeValidator

from hansa.address import join, split

FORM = "http://proxy:3128 or http://user:password@proxy:3128; %40 stands for @ in a password"


@dataclass(frozen=True)
class Proxy:
    """Where a proxy is, and who we are there."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)  # of the header Proxy-Authorization

    def __str__(self) -> str:
        return join(self.host, self.port)


def parse(text: object) -> Proxy:
    """A proxy from its URL.

    Raises:
        ValueError: it is none, in words for the user; they repeat nothing of it, since it may hold a password.
    """
    if isinstance(text, Proxy):
        return text
    wrong = ValueError(f"must be {FORM}")
    if not isinstance(text, str) or not re.fullmatch(r"http://[\x21-\x7e]+", text):
        raise wrong
    user, at, address = text.removeprefix("http://").removesuffix("/").rpartition("@")
    try:
        host, port = split(address)
    except ValueError:
        raise wrong from None
    if port == 0 or urlsplit(text).path not in ("", "/") or (at and ":" not in user):
        raise wrong
    if not at:
        return Proxy(host, port)
    said = b":".join(unquote(part).encode() for part in user.split(":", 1))
    return Proxy(host, port, f"Basic {base64.b64encode(said).decode('ascii')}")


ProxyUrl = Annotated[Proxy, BeforeValidator(parse)]


class Refused(ConnectionError):
    """A proxy lets nothing through; the text says why, and is fit to print."""


class Connect:
    """Asks a proxy for a connection to an address. Pure.

    Args:
        address: host:port.
        proxy: that is asked.
    """

    def __init__(self, address: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self._http = h11.Connection(h11.CLIENT)
        heads = [("host", address)]
        if proxy.authorization:
            heads.append(("proxy-authorization", proxy.authorization))
        asked = h11.Request(method="CONNECT", target=address, headers=heads)
        self.question = (self._http.send(asked) or b"") + (self._http.send(h11.EndOfMessage()) or b"")

    def feed(self, data: bytes) -> bool:
        """Takes what the proxy answers; True: the way is open.

        Raises:
            Refused: it is not.
        """
        if not data:
            raise Refused(f"proxy {self.proxy} closed the connection without an answer")
        try:
            self._http.receive_data(data)
            while isinstance(event := self._http.next_event(), h11.InformationalResponse):
                pass
        except h11.ProtocolError:
            raise Refused(f"proxy {self.proxy} answers what is no HTTP") from None
        if event is h11.NEED_DATA:
            return False
        if not isinstance(event, h11.Response):
            raise Refused(f"proxy {self.proxy} answers what is no HTTP")
        if event.status_code == 407:
            raise Refused(f"proxy {self.proxy} wants another user or password (407)")
        if not 200 <= event.status_code < 300:
            raise Refused(f"proxy {self.proxy} does not connect (status {event.status_code})")
        if self._http.trailing_data[0]:
            raise Refused(f"proxy {self.proxy} says more than it should")
        return True
