"""Addresses as users write them: `host:port`, `10.0.0.5:9092`, `[::1]:9092`."""

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator

from hansa.words import shown

LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"  # underscores: names inside a container network
NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")


def is_host(text: str) -> bool:
    """Whether it is an IP address, or may be a DNS name."""
    return as_ip(text) is not None or (NAME.fullmatch(text) is not None and not re.fullmatch(r"[0-9.]+", text))


def as_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is, or None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    ip = as_ip(host)
    return host == "localhost" if ip is None else ip.is_loopback


def join(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Host (without brackets) and port of an address.

    Raises:
        ValueError: it is none, in words for the user.
    """
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host
    if (
        not is_host(bare)
        or (":" in host and bare == host)
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or int(port) > 65535
    ):
        raise ValueError(f"must be host:port, e.g. fl.example.org:9092; got {shown(address)}")
    return bare, int(port)


def _listens(address: str) -> str:
    return join(*split(address))


def _dialled(address: str) -> str:
    host, port = split(address)
    ip = as_ip(host)
    if port == 0:
        raise ValueError(f"port 0 cannot be dialled; give the port of the other end; got {shown(address)}")
    if ip is not None and ip.is_unspecified:
        raise ValueError(f"{host} cannot be dialled; give the name or IP address of the other end")
    return join(host, port)


def _host(text: str) -> str:
    if not is_host(text):
        raise ValueError(f"must be a DNS name or an IP address, without a port; got {shown(text)}")
    return text


Host = Annotated[str, AfterValidator(_host)]
Listens = Annotated[str, AfterValidator(_listens)]  # where a server listens; port 0: the operating system chooses
Dialled = Annotated[str, AfterValidator(_dialled)]  # where a client connects to
