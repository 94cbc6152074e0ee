"""The server's next certificate, and the lines that tell in time whose ends."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hansa.errors import UserError
from hansa.identity import Credential, ends, flaw, hosts
from hansa.startup import read_roster
from server.provision import Founding, provision
from server.renewal import endings, renew

NOW = datetime.now(UTC)
HOSTS = ["fl.example.org", "localhost", "192.0.2.7", "127.0.0.1"]


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    provision(tmp_path / "heart", ["boston"], Founding(hosts=("fl.example.org", "192.0.2.7")), NOW)
    return tmp_path / "heart"


def pair(folder: Path) -> Credential:
    return Credential((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes())


def test_the_server_s_next_certificate_is_for_the_same_names_and_a_new_key(heart: Path) -> None:
    before, later = pair(heart / "server"), NOW + timedelta(days=340)
    line, _ = renew(heart, [], later)
    after = pair(heart / "server")
    assert flaw(after, (heart / "server" / "ca.crt").read_bytes(), later) is None
    assert hosts(before.certificate) == hosts(after.certificate) == HOSTS
    assert after.key != before.key
    assert ends(after.certificate) - ends(before.certificate) == timedelta(days=340)
    assert line.endswith(f"good until {ends(after.certificate):%Y-%m-%d}")


def test_where_the_server_s_folder_is_elsewhere_the_pair_waits_to_be_taken_there(heart: Path) -> None:
    shutil.rmtree(heart / "server")
    renew(heart, ["10.0.0.5"], NOW)
    assert hosts(pair(heart / "server-renewed").certificate) == ["10.0.0.5"]
    assert (heart / "server-renewed" / "tls.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="take it to the server and remove it here"):
        renew(heart, [], NOW)


def test_a_host_that_is_none_is_a_line(heart: Path) -> None:
    with pytest.raises(UserError, match="--host fl:443: must be a DNS name"):
        renew(heart, ["fl:443"], NOW)


def test_an_end_is_told_from_thirty_days_before(heart: Path) -> None:
    server = heart / "server"
    roster, until = read_roster(server), ends(pair(server).certificate)
    (server / "certificates").mkdir()
    shutil.copy(heart / "sites" / "boston" / "tls.crt", server / "certificates" / "boston.crt")
    assert list(endings(server, roster, until - timedelta(days=31))) == []
    own, site = endings(server, roster, until - timedelta(days=12))
    assert own == (
        f"warning: {server / 'tls.crt'}: the certificate ends on {until:%Y-%m-%d}, in 12 days; hansa renew FOLDER "
        "where the consortium was founded"
    )
    assert site == f"warning: the certificate of boston ends on {until:%Y-%m-%d}; there: hansa site renew"
