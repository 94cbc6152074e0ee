"""Who is not let in by the head, and that it goes on for those who are."""

import asyncio
import os
import signal
import socket
import ssl
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clients.agents.agent import Agent, Wanted
from clients.agents.frames import VERSION, framed
from clients.agents.head import Head
from clients.agents.keys import AGENTS, CA, HEAD_NAME, agent_context, make_key
from hansa.address import split
from hansa.errors import UserError

if TYPE_CHECKING:
    from tests.clients.agents.conftest import Site

LONG_AGO = datetime.now(UTC) - timedelta(days=400)


def connected(head: Head) -> socket.socket:
    return socket.create_connection(split(head.address))


def secured(site: "Site", head: Head, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """A connection of an agent that shows a good key."""
    made = context or agent_context(site.folder, "any", datetime.now(UTC))
    return made.wrap_socket(connected(head), server_hostname=HEAD_NAME)


def told(site: "Site", text: str) -> Callable[[], bool]:
    return lambda: any(text in line for line in site.said)


def test_what_is_no_tls_is_turned_away(site: "Site") -> None:
    with connected(site.head()) as end:
        end.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        site.until(told(site, "127.0.0.1 was turned away: no TLS 1.3"))
        end.settimeout(60.0)
        while end.recv(4096):
            pass


def test_one_without_a_certificate_is_turned_away(site: "Site") -> None:
    head = site.head()
    context = ssl.create_default_context(cafile=str(site.folder / AGENTS / CA))
    with secured(site, head, context) as end:
        site.until(told(site, "was turned away: no TLS 1.3 (peer did not return a certificate)"))
        assert end.recv(1) == b""


def test_another_sites_key_is_turned_away_at_both_ends(site: "Site", tmp_path: Path) -> None:
    head = site.head()
    other = tmp_path / "other"
    other.mkdir()
    make_key(other, "two", "any", datetime.now(UTC))
    foreign = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    foreign.load_verify_locations(site.folder / AGENTS / CA)
    foreign.load_cert_chain(other / AGENTS / "any.pem")
    with secured(site, head, foreign) as end:
        site.until(told(site, "was turned away: its certificate: "))
        assert end.recv(1) == b""
    with pytest.raises(ssl.SSLCertVerificationError):  # and that site's agent does not take this head for its own
        secured(site, head, agent_context(other, "any", datetime.now(UTC)))


def test_a_key_that_was_taken_out_of_the_folder_is_turned_away(site: "Site") -> None:
    head = site.head()
    context = agent_context(site.folder, "any", datetime.now(UTC))
    make_key(site.folder, "one", "any", datetime.now(UTC))  # another one in its place
    with secured(site, head, context) as end:
        site.until(told(site, "its key is none of those"))
        assert end.recv(1) == b""


def test_a_certificate_that_has_ended_is_turned_away_at_both_ends(site: "Site") -> None:
    head = site.head()
    path = make_key(site.folder, "one", "old", LONG_AGO)
    with pytest.raises(UserError, match=r"old.pem: the certificate ended on .*; hansa site agent-key old"):
        agent_context(site.folder, "old", datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(site.folder / AGENTS / CA)
    context.load_cert_chain(path)
    with secured(site, head, context) as end:
        site.until(told(site, "was turned away: its certificate: certificate has expired"))
        assert end.recv(1) == b""


@pytest.mark.parametrize(
    "sent",
    [struct.pack("<QQ", 1 << 40, 0), os.urandom(100), framed({"hello": 3}), framed({"tell": {}}), b""],
    ids=["huge", "noise", "kind", "other", "silence"],
)
def test_one_with_a_key_who_talks_nonsense_is_turned_away(site: "Site", sent: bytes) -> None:
    head = site.head(heartbeat=1.0)
    with secured(site, head) as end:
        end.sendall(sent)
        assert end.recv(1) == b""
        site.until(told(site, "127.0.0.1 was turned away"))
    assert head.wait(1, 0.0, lambda: False) == 0


def test_another_version_is_turned_away(site: "Site") -> None:
    head = site.head()
    with secured(site, head) as end:
        end.sendall(framed({"hello": "a", "address": "127.0.0.2", "devices": 0, "version": VERSION + 1}))
        site.until(told(site, "it is of another version of hansa"))


def test_an_agent_runs_no_app_that_its_site_does_not_allow(site: "Site") -> None:
    head = site.head()
    text = (site.folder / "site.toml").read_text()
    (site.folder / "site.toml").write_text(text[: text.index("[apps]")])
    site.agent(head.address, "a")
    site.until(told(site, "node a: sha256:"))
    site.until(lambda: "is not in [apps] allowed; trying on" in site.log("a"))
    (site.folder / "site.toml").write_text(text)
    assert head.wait(1, 120.0, lambda: False) == 1  # it has tried on


def test_nodes_without_the_sites_folder_take_no_part(site: "Site", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.agents.agent.FRESH", 0.0)
    site.head()
    agent = Agent(Wanted(site.folder, ("127.0.0.1", 1), "a", "any", None, None, None), site.said.append)
    told_ = {"run": "run", "app": "spool/run/app", "mark": "spool/run/mark", "is": "what another folder has"}
    with pytest.raises(UserError, match="all nodes must share the site's folder"):
        asyncio.run(agent._accept(told_, site.folder / "copy"))


def test_sigterm_ends_an_agent_in_one_line(site: "Site") -> None:
    head = site.head()
    site.agent(head.address, "a")
    assert head.wait(1, 120.0, lambda: False) == 1
    site.agents["a"].send_signal(signal.SIGTERM)
    assert site.agents["a"].wait(60) == 0
    assert site.log("a").splitlines()[-1] == "node a: stopped"
    site.until(told(site, "nodes: a is gone"))


def test_an_agent_without_a_head_ends_when_it_was_told_to(site: "Site") -> None:
    site.head()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    site.agent(f"127.0.0.1:{port}", "a", "127.0.0.1", "--patience", "0")
    assert site.agents["a"].wait(120) == 1
    assert site.log("a").splitlines()[-1].endswith(f"node a: no head at 127.0.0.1:{port} for 0 s")


def test_a_head_without_keys_says_how_to_make_them(site: "Site", tmp_path: Path) -> None:
    table = site.write(mode="agents", listen="127.0.0.1:1")
    with pytest.raises(UserError, match="hansa site agent-key"):
        Head(site.folder, tmp_path, "run", site.spool, table, ("127.0.0.1", 0), site.said.append)


def test_an_agent_with_another_sites_key_says_why_it_waits(site: "Site", tmp_path: Path) -> None:
    """Its own authority, in its own folder, is not that of the head."""
    head = site.head()
    (site.folder / AGENTS).rename(tmp_path / "good")
    make_key(site.folder, "two", "any", datetime.now(UTC))
    site.agent(head.address, "a", "127.0.0.1", "--patience", "0")
    assert site.agents["a"].wait(120) == 1
    assert "its certificate: " in site.log("a")
    site.until(told(site, "127.0.0.1 was turned away"))
