"""What the doctor finds on the machine with the head."""

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clients.agents.checks import look_at_agents
from clients.agents.keys import AGENTS, make_key
from clients.sitefile import SiteTrainingTable

NOW = datetime.now(UTC)


def found(folder: Path, port: int) -> list[str]:
    training = SiteTrainingTable(procs=2, nodes=2, mode="agents", listen=f"127.0.0.1:{port}")
    return [str(one).replace(str(folder), ".") for one in look_at_agents(training, folder, NOW)]


def test_a_port_that_is_taken_and_keys_that_are_missing_or_end_are_to_be_mended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        taken, keyless = found(tmp_path, port)
    assert taken.startswith(f"mend  [training] listen: 127.0.0.1:{port}: address already in use")
    assert keyless.endswith("make one for each node with hansa site agent-key NODE .")
    make_key(tmp_path, "one", "new", NOW)
    make_key(tmp_path, "one", "old", NOW - timedelta(days=340))
    (tmp_path / AGENTS / "torn.pem").write_text("-----BEGIN")
    free, new, old, torn = found(tmp_path, port)
    assert free == f"ok    [training] listen: 127.0.0.1:{port} is free, for the agents of 2 nodes"
    assert new.startswith("ok    agents/new.pem: good until ")
    assert old.startswith("mend  agents/old.pem: good until ")
    assert old.endswith("; hansa site agent-key old .")
    assert torn == "mend  ./agents/torn.pem: no certificate; hansa site agent-key torn ."


def test_a_site_of_one_machine_is_not_asked(tmp_path: Path) -> None:
    assert list(look_at_agents(SiteTrainingTable(), tmp_path, NOW)) == []
