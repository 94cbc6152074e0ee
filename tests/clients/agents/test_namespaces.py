"""Two nodes that really are two hosts of a network: network namespaces, joined by a bridge."""

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from clients.agents.head import Head
from hansa.address import split

if TYPE_CHECKING:
    from tests.clients.agents.conftest import Site

HEAD, NODES = "198.51.100.1", {"a": "198.51.100.2", "b": "198.51.100.3"}  # RFC 5737


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, tuple[str, ...]]]:
    """What a command is preceded by that is to run on a node; the head's host is this one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root, and ip of iproute2")
    mark = secrets.token_hex(3)
    bridge = f"hb{mark}"
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{HEAD}/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for node, address in NODES.items():
            space, outer = f"hansa-{mark}-{node}", f"hv{mark}{node}"
            ip("netns", "add", space)
            ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", outer, "master", bridge, "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space, "link", "set", device, "up")
        yield {node: ("ip", "netns", "exec", f"hansa-{mark}-{node}") for node in NODES}
    finally:
        for what in (["link", "del", bridge], *(["netns", "del", f"hansa-{mark}-{node}"] for node in NODES)):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*what)


@pytest.mark.root
def test_two_hosts_give_the_update_of_one_process(hosts: dict[str, tuple[str, ...]], site: "Site") -> None:
    """Neither reaches the other's loopback: what is bound or told by that address would not be found."""
    alone = site.alone()
    head: Head = site.head(listen_at=HEAD)
    for node, enter in hosts.items():
        site.agent(head.address, node, NODES[node], enter=enter)
    assert split(head.address)[0] == HEAD
    group = site.group(head, head.training)
    torch.testing.assert_close(site.update(group), alone, rtol=0.0, atol=1e-6)
    assert len(group.pids) == 2
