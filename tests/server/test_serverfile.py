"""server.toml: what is right is read as it stands, and each mistake gets its line."""

import re
from pathlib import Path

import pytest

from hansa.errors import UserError
from hansa.wire.rules import HEARTBEAT, ORPHAN_AFTER
from server.serverfile import RunsTable, ServerTable, load_server_file

ADDRESS = "host:port, e.g. fl.example.org:9092"

MISTAKES: list[tuple[str, list[str]]] = [
    # [server]
    ("[server]\nflower = 'h'", [f'[server] flower: must be {ADDRESS}; got "h"']),
    ("[server]\nflower = 9092", ["[server] flower: must be text in quotes; got 9092"]),
    ("[server]\nsession = 'h:99999'", [f'[server] session: must be {ADDRESS}; got "h:99999"']),
    (
        "[server]\nannounce = 'h:0'",
        ['[server] announce: port 0 cannot be dialled; give the port of the other end; got "h:0"'],
    ),
    (
        "[server]\nflower = '127.0.0.1:9'\nsession = '127.0.0.1:9'",
        ["[server]: flower and session are both 127.0.0.1:9; give one of them another port"],
    ),
    (
        "[server]\nsession = '0.0.0.0:9'",
        ['[server]: session listens on 0.0.0.0, which no site can dial; set announce = "NAME:PORT"'],
    ),
    (
        "[server]\nsession = '[::]:9'",
        ['[server]: session listens on ::, which no site can dial; set announce = "NAME:PORT"'],
    ),
    (
        "[server]\nsession = '0.0.0.0:0'\nannounce = 'h:9'",
        ["[server]: announce names a port, but that of session is chosen at each start; give session a port"],
    ),
    ("[server]\nport = 1", ["[server] port: no such key (keys: public, name, flower, session, announce)"]),
    # [server] with a public port
    ("[server]\npublic = '443'", [f'[server] public: must be {ADDRESS}; got "443"']),
    (
        "[server]\npublic = '0.0.0.0:443'",
        ['[server]: public listens on 0.0.0.0, which no site can dial; set name = "NAME"'],
    ),
    (
        "[server]\npublic = '10.0.0.5:443'\nsession = '127.0.0.1:1'\nannounce = 'h:1'",
        ["[server]: with public, the sessions come in there too; leave session and announce out"],
    ),
    (
        "[server]\npublic = '10.0.0.5:443'\nflower = '10.0.0.5:9092'",
        ['[server]: with public, nobody else may reach flower; set flower = "127.0.0.1:9092"'],
    ),
    ("[server]\nname = 'h'", ["[server]: name is the host of public; set public, or leave name out"]),
    (
        "[server]\npublic = '0.0.0.0:443'\nname = 'h:443'",
        ['[server] name: must be a DNS name or an IP address, without a port; got "h:443"'],
    ),
    # [runs]
    ("[runs]\nheartbeat = 0", ["[runs] heartbeat: must be greater than 0; got 0"]),
    ("[runs]\norphan_after = -1", ["[runs] orphan_after: must be greater than 0; got -1"]),
    ("[runs]\nmax_duration = 0", ["[runs] max_duration: must be greater than 0; got 0"]),
    ("[runs]\nmax_duration = inf", ["[runs] max_duration: must be a finite number; got Infinity"]),
    ("[runs]\norphan_after = 14", ["[runs]: orphan_after must be at least 3 times heartbeat; got 14"]),
    # [flower], and tables
    ("[flower]\ntelemetry = 0", ["[flower] telemetry: must be true or false; got 0"]),
    ("[sever]", ["[sever]: unknown table; did you mean [server]? (tables: server, runs, apps, flower)"]),
    (
        "[runs]\nheartbeat = 'x'\n[server]\nflower = ''",
        ['[runs] heartbeat: must be a number; got "x"', f'[server] flower: must be {ADDRESS}; got ""'],
    ),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_each_mistake_gets_its_line(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        load_server_file(write(tmp_path, text))
    assert [re.sub("^server.toml ", "", line) for line in raised.value.problems] == expected


def test_an_empty_file_stays_on_this_machine(tmp_path: Path) -> None:
    file = load_server_file(write(tmp_path, ""))
    assert file.server == ServerTable(flower="127.0.0.1:9092", session="127.0.0.1:9093", announce=None)
    assert file.runs == RunsTable(heartbeat=HEARTBEAT, orphan_after=ORPHAN_AFTER, max_duration=7 * 24 * 3600)
    assert not file.flower.telemetry
    assert file.folder == tmp_path


def test_every_key_is_read(tmp_path: Path) -> None:
    text = '[server]\nflower = "127.0.0.1:0"\nsession = "0.0.0.0:443"\nannounce = "fl.example.org:8443"\n'
    text += "[runs]\nheartbeat = 0.5\norphan_after = 1.5\nmax_duration = 60\n[flower]\ntelemetry = true"
    file = load_server_file(write(tmp_path, text))
    assert file.server == ServerTable(flower="127.0.0.1:0", session="0.0.0.0:443", announce="fl.example.org:8443")
    assert file.runs == RunsTable(heartbeat=0.5, orphan_after=1.5, max_duration=60)
    assert file.flower.telemetry


@pytest.mark.parametrize(
    ("keys", "reached"),
    [
        ({}, None),
        ({"public": "10.0.0.5:443"}, "10.0.0.5:443"),
        ({"public": "0.0.0.0:443", "name": "fl.example.org"}, "fl.example.org:443"),
        ({"public": "[::]:443", "name": "2001:db8::7"}, "[2001:db8::7]:443"),
    ],
)
def test_with_a_public_port_each_run_has_an_end_of_its_own_that_nobody_else_reaches(
    keys: dict[str, str], reached: str | None
) -> None:
    table = ServerTable.model_validate(keys)
    assert table.reached == reached
    assert table.sessions == ("127.0.0.1:0" if reached else table.session)


def test_both_ports_may_be_chosen_by_the_operating_system() -> None:
    assert ServerTable(flower="127.0.0.1:0", session="127.0.0.1:0")
