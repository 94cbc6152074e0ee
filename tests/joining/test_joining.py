"""A site joins by its kit, through a real gate and control end; renews its certificate; and is put out again."""

import asyncio
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clients.doctor import examine
from clients.forwarder import keep_newest, newest
from clients.joining import join
from clients.newest import refresh_roster
from clients.renewal import is_asked, renew
from clients.sitefolder import open_site_folder
from clients.up import up
from hansa import identity
from hansa.controlclient import ControlClient, in_folder
from hansa.dial import Way
from hansa.errors import RunFailed, UserError
from hansa.kit import Signed, read_kit
from hansa.kit import invite as make_invitation
from hansa.request import make_request
from hansa.startup import read_roster
from server.approve import administrator_asks, approve
from server.invite import invite
from server.provision import Founding, provision

if TYPE_CHECKING:
    from tests.joining.conftest import Heart, HttpProxy

Made = dict[str, bytes]


@pytest.fixture(scope="module")
def keys() -> Made:
    return {
        "tls.key": identity.make_tls_key(),
        "sign.key": identity.make_signing_key().private,
        "node.key": identity.make_node_key().private,
    }


LONG = 60.0  # seconds for what takes a few on an idle machine


def control_of(heart: "Heart", site: Path) -> ControlClient:
    return in_folder(Way(f"127.0.0.1:{heart.port}", None), site)


def private_keys(folder: Path) -> list[str]:
    """The lines of the private keys, without those that are the same in each."""
    lines = [line for file in folder.rglob("*.key") for line in file.read_text().splitlines()]
    return [line for line in lines if "-----" not in line and not line.startswith("b3BlbnNzaC1rZXkt")]


def waiting(heart: "Heart") -> list[str]:
    """The sites whose requests wait."""
    found = administrator_asks(heart.folder, datetime.now(UTC), print)("requests", {})
    return [request["site"] for request in found["requests"]]


def test_a_site_that_was_invited_joins_and_its_folder_is_what_site_up_wants(heart: "Heart", tmp_path: Path) -> None:
    joining = heart.joining(tmp_path / "bern")
    joining.start(heart.kit("bern"))
    told = joining.until("fingerprint")
    joining.until("waiting to be approved")
    assert not (tmp_path / "bern" / "site.toml").exists()
    approved = heart.approve()
    assert approved[0].startswith("bern, a new site, keys ")
    assert approved[0].rpartition(" ")[2] == told.rpartition(" ")[2]
    joining.end()
    site = open_site_folder(tmp_path / "bern", datetime.now(UTC))
    assert (site.name, site.file.site.server, site.file.network.gate) == ("bern", f"127.0.0.1:{heart.port}", True)
    assert {path.name for path in (tmp_path / "bern").iterdir()} >= {"ca.crt", "tls.crt", "sign.key", "node.key"}
    assert not (tmp_path / "bern" / "joining.kit").exists()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "bern").glob("*.key")}
    assert modes == {"tls.key": 0o600, "sign.key": 0o600, "node.key": 0o600}
    assert "hansa site doctor" in joining.said[-2]
    assert control_of(heart, tmp_path / "bern").ask("roster", {"edition": 0}, print)["edition"] == site.roster.edition
    kept = b"".join(path.read_bytes() for path in heart.folder.rglob("*") if path.is_file())
    said = "".join(joining.said).encode()
    assert not [line for line in private_keys(tmp_path / "bern") if line.encode() in kept + said]


def test_a_site_that_was_invited_with_two_nodes_makes_two_keys_and_renews_with_both(
    heart: "Heart", tmp_path: Path
) -> None:
    invite(heart.folder, "basel", datetime.now(UTC), nodes=2)
    joining = heart.joining(tmp_path / "basel")
    joining.start(heart.folder / "invitations" / "basel.kit")
    joining.until("waiting to be approved")
    heart.approve("basel")
    joining.end()
    site = open_site_folder(tmp_path / "basel", datetime.now(UTC))
    assert site.node_keys == ["node.key", "node-2.key"]
    keys = [(site.path / name).read_bytes() for name in site.node_keys]
    member = site.roster.member("basel")
    assert member is not None
    assert member.nodes == tuple(map(identity.node_public, keys))
    renewing = threading.Thread(target=renew, args=(site.path, print))
    renewing.start()
    heart.until(lambda: heart.approve("basel") if "basel" in waiting(heart) else None)
    renewing.join(LONG)
    assert read_roster(site.path).member("basel") != member
    assert open_site_folder(site.path, datetime.now(UTC)).node_keys == site.node_keys


def test_a_join_that_was_cut_off_goes_on_with_the_same_keys(heart: "Heart", tmp_path: Path) -> None:
    """The first one is left waiting, as a killed process is; the second finds its keys."""
    kit, first, second = heart.kit("lyon"), heart.joining(tmp_path / "lyon"), heart.joining(tmp_path / "lyon")
    first.start(kit)
    first.until("waiting to be approved")
    before = private_keys(tmp_path / "lyon")
    second.start(kit)
    assert second.until("fingerprint") == first.until("fingerprint")
    second.until("waiting to be approved")
    heart.approve("lyon")
    second.end()
    assert private_keys(tmp_path / "lyon") == before
    assert open_site_folder(tmp_path / "lyon", datetime.now(UTC)).name == "lyon"
    with pytest.raises(UserError, match="is a site's folder already; start it with hansa site up"):
        join(kit, tmp_path / "lyon", None, print)


def test_a_site_joins_through_a_proxy_that_wants_a_password(heart: "Heart", proxy: "HttpProxy", tmp_path: Path) -> None:
    folder = heart.joined("bonn", tmp_path / "bonn", proxy.url())
    assert {*proxy.asked} == {f"127.0.0.1:{heart.port}"}
    assert open_site_folder(folder, datetime.now(UTC)).file.network.proxy is not None
    assert (folder / "site.toml").stat().st_mode & 0o777 == 0o600


def test_a_proxy_s_password_is_in_no_message(heart: "Heart", proxy: "HttpProxy", tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"wants another user or password \(407\)") as raised:
        join(heart.kit("brno"), tmp_path / "brno", proxy.url("swordfish"), print)
    assert "swordfish" not in str(raised.value)
    with pytest.raises(UserError, match="--proxy: must be http://proxy:3128") as wrong:
        join(heart.kit("brno"), tmp_path / "brno", "socks://clinic:swordfish@proxy", print)
    assert "swordfish" not in str(wrong.value)


def refusal(heart: "Heart", verb: str, body: Any) -> tuple[str, str]:
    """What a stranger is told, and the code that is on record."""
    with pytest.raises(UserError) as raised:
        heart.stranger().ask(verb, body, print)
    line = json.loads(heart.acts().splitlines()[-1])
    assert (line["verb"], line["outcome"], line["role"]) == (verb, "refused", "nobody")
    return str(raised.value), line["reason"]


def test_who_has_no_good_invitation_is_refused_and_that_is_on_record(
    heart: "Heart", keys: Made, tmp_path: Path
) -> None:
    def ask(site: str, invited: Signed, own: Made = keys) -> Any:
        return make_request(site, own, invited).model_dump(mode="json")

    invited = read_kit(heart.kit("oslo")).invited
    roster_key = (heart.folder / "consortium" / "roster.key").read_bytes()
    old = make_invitation("oslo", "0" * 64, roster_key, datetime.now(UTC) - timedelta(days=8))
    signed = invited.model_dump(mode="json")
    signed["invitation"]["expires"] = "2999-01-01T00:00:00Z"
    provision(tmp_path / "heart", ["boston"], Founding(), datetime.now(UTC))
    invite(tmp_path / "heart", "oslo", datetime.now(UTC))
    foreign = read_kit(tmp_path / "heart" / "invitations" / "oslo.kit").invited
    assert refusal(heart, "enrol", ask("oslo", foreign))[1] == "forged"
    assert refusal(heart, "enrol", ask("oslo", Signed.model_validate(signed)))[1] == "forged"
    assert refusal(heart, "enrol", ask("graz", invited))[1] == "another_site"
    line, code = refusal(heart, "enrol", ask("oslo", old))
    assert (line, code) == ("the invitation is out of date; ask the consortium for a new one", "expired")
    assert heart.stranger().ask("enrol", ask("oslo", invited), print)["state"] == "waiting"
    others = {**keys, "tls.key": identity.make_tls_key()}
    line, code = refusal(heart, "enrol", ask("oslo", invited, others))
    assert (line, code) == (
        "the invitation was used already, by other keys; ask the consortium for a new one",
        "used",
    )
    assert invited.signature not in heart.acts()
    assert invited.invitation.nonce not in heart.acts()


def test_a_kit_of_another_server_is_told(heart: "Heart", tmp_path: Path) -> None:
    """It is of a consortium whose server has no business at this address."""
    provision(tmp_path / "two", ["boston"], Founding(port=heart.port), datetime.now(UTC))
    invite(tmp_path / "two", "bern", datetime.now(UTC))
    with pytest.raises(RunFailed, match="what answers there is not this consortium's server"):
        join(tmp_path / "two" / "invitations" / "bern.kit", tmp_path / "bern", None, print)


def test_a_site_takes_up_a_newer_roster_once(heart: "Heart", tmp_path: Path) -> None:
    first = heart.joined("pisa", tmp_path / "pisa")
    before = read_roster(first)
    heart.joined("riga", tmp_path / "riga")
    said: list[str] = []
    refresh_roster(first, "pisa", control_of(heart, first), said.append)
    after = read_roster(first)
    assert after.edition == before.edition + 1
    assert after == read_roster(heart.server)
    assert after.member("riga") is not None
    (line,) = said
    assert f"edition {after.edition}" in line
    refresh_roster(first, "pisa", control_of(heart, first), said.append)
    assert len(said) == 1


def test_a_certificate_is_renewed_and_the_old_one_serves_until_then(heart: "Heart", tmp_path: Path) -> None:
    site = heart.joined("trier", tmp_path / "trier")
    before = {name: (site / name).read_bytes() for name in ("tls.crt", "tls.key", "sign.key", "node.key")}
    said: list[str] = []
    thread = threading.Thread(target=renew, args=(site, said.append))
    thread.start()
    heart.until(lambda: any("waiting to be approved" in line for line in said))
    assert is_asked(site)
    assert heart.approve("trier")[0].startswith("trier, its next certificate, keys ")
    thread.join(LONG)
    assert not thread.is_alive()
    folder = open_site_folder(site, datetime.now(UTC))
    after = {name: (site / name).read_bytes() for name in before}
    assert {name for name in before if before[name] != after[name]} == {"tls.crt", "tls.key"}
    assert folder.roster == read_roster(heart.server)
    assert not is_asked(site)
    assert control_of(heart, site).ask("roster", {"edition": 0}, print)["edition"] == folder.roster.edition
    old = tmp_path / "old"
    old.mkdir()
    for name, content in {**before, "ca.crt": (site / "ca.crt").read_bytes()}.items():
        (old / name).write_bytes(content)
    assert control_of(heart, old).ask("roster", {"edition": 0}, print)["edition"] == folder.roster.edition
    heart.revoke("trier")
    for one in (old, site):
        with pytest.raises((RunFailed, UserError)):
            control_of(heart, one).ask("roster", {"edition": 0}, print)


def test_a_certificate_that_was_granted_while_nobody_waited_is_fetched_by_site_up(
    heart: "Heart", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = heart.joined("turin", tmp_path / "turin")

    monkeypatch.setattr("clients.renewal.time.sleep", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        renew(site, print)
    heart.approve("turin")
    before, said = (site / "tls.crt").read_bytes(), list[str]()
    assert open_site_folder(site, datetime.now(UTC)).name == "turin"
    newest(site, "turin", control_of(heart, site), said.append)
    assert (site / "tls.crt").read_bytes() != before
    assert open_site_folder(site, datetime.now(UTC)).roster == read_roster(heart.server)
    assert "renewed, good until" in said[0]


def test_a_certificate_that_is_not_good_yet_replaces_none(
    heart: "Heart", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The founder's clock is an hour ahead of the site's."""
    site = heart.joined("ulm", tmp_path / "ulm")
    monkeypatch.setattr("clients.renewal.time.sleep", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        renew(site, print)
    now = datetime.now(UTC)
    asks = administrator_asks(heart.folder, now, print)
    approve(heart.folder, ["ulm"], now + timedelta(hours=1), asks, lambda line: True, print)
    with pytest.raises(UserError, match=r"begins on .*; set this machine's clock; nothing was replaced"):
        newest(site, "ulm", control_of(heart, site), print)
    assert is_asked(site)
    assert open_site_folder(site, now).name == "ulm"


def ctrl_c(seconds: float) -> None:
    raise KeyboardInterrupt


def test_a_site_that_was_founded_with_its_certificate_renews_it_too(heart: "Heart", tmp_path: Path) -> None:
    site, said = heart.folder / "sites" / "boston", list[str]()
    thread = threading.Thread(target=renew, args=(site, said.append))
    thread.start()
    heart.until(lambda: any("waiting to be approved" in line for line in said))
    heart.approve("boston")
    thread.join(LONG)
    assert not thread.is_alive()
    assert open_site_folder(site, datetime.now(UTC)).name == "boston"


def test_site_up_takes_up_the_newest_roster_when_it_starts(heart: "Heart", tmp_path: Path) -> None:
    """Its forwarder asks at once, then every hour; what goes wrong is said once."""
    site = heart.joined("jena", tmp_path / "jena")
    before = read_roster(site).edition
    heart.joined("kiel", tmp_path / "kiel")
    said: list[str] = []

    async def a_while() -> None:
        keeping = asyncio.create_task(keep_newest(site, "jena", control_of(heart, site), said.append))
        while not said:
            await asyncio.sleep(0.05)
        keeping.cancel()

    asyncio.run(asyncio.wait_for(a_while(), LONG))
    assert read_roster(site).edition == before + 1
    heart.revoke("jena")
    said.clear()
    asyncio.run(asyncio.wait_for(a_while(), LONG))
    (line,) = said
    assert line.startswith("the newest roster: ")
    assert line.endswith("the certificate was revoked")


def test_a_folder_whose_join_is_not_over_is_told(heart: "Heart", tmp_path: Path) -> None:
    joining = heart.joining(tmp_path / "linz")
    joining.start(heart.kit("linz"))
    joining.until("waiting to be approved")
    said: list[str] = []
    mend = "linz has not joined yet: go on with hansa site join"
    with pytest.raises(UserError, match=mend):
        up(tmp_path / "linz", said.append)
    assert not examine(tmp_path / "linz", said.append)
    assert mend in said[-1]


def test_a_folder_that_is_something_else_is_left_alone(heart: "Heart", tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    with pytest.raises(UserError, match="is there, and nobody began to join in it"):
        join(heart.kit("wien"), tmp_path / "full", None, print)
    assert os.listdir(tmp_path / "full") == []
