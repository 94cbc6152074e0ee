"""What an agent finds out about its machine, without torch."""

import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # netdevice(7)
GPUS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices() -> int:
    """How many GPUs a rank could have here."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return len([one for one in named.split(",") if one.strip() not in ("", "-1")])
    return len(list(GPUS.iterdir())) if GPUS.is_dir() else 0


def interface(address: str) -> str | None:
    """The network interface of an address of this machine, by which gloo and NCCL are told where to talk."""
    ip = ipaddress.ip_address(address)
    names = [name for _, name in socket.if_nameindex()]
    if ip.version == 6:
        lines = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
        return next((line[5] for line in lines if line[0] == ip.packed.hex()), None)
    nets = {name: net for name in names if (net := _network(name)) is not None}
    own = [name for name, net in nets.items() if net.ip == ip]
    return next(iter(own or [name for name, net in nets.items() if ip in net.network]), None)


def _network(name: str) -> ipaddress.IPv4Interface | None:
    request = struct.pack("256s", name.encode()[:15])  # struct ifreq: the name, then the answer
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        asked = (_SIOCGIFADDR, _SIOCGIFNETMASK)
        found = [socket.inet_ntoa(fcntl.ioctl(end, what, request)[20:24]) for what in asked]
        return ipaddress.IPv4Interface("/".join(found))
    return None
