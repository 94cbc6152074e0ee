"""From an invitation to a member, and out again: the server's half and the founder's, with no network between them."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from hansa import identity
from hansa.controlclient import Unanswered
from hansa.errors import RunFailed, UserError
from hansa.kit import Signed, read_kit
from hansa.request import Request, Unsound, make_claim, make_request, read_request
from hansa.roles import Role
from hansa.roster import Roster
from hansa.startup import read_roster
from server.approve import approve, revoke
from server.callers import Callers
from server.consortium import open_consortium
from server.enrolment import collect, enrol, renew, requests
from server.invite import invite
from server.members import Members, Unwelcome
from server.provision import Founding, provision
from server.publishing import newer, publish
from server.revoked import sign_revoked

NOW = datetime.now(UTC)
YES: Callable[[str], bool] = lambda line: True  # noqa: E731


def new_keys() -> dict[str, bytes]:
    return {
        "tls.key": identity.make_tls_key(),
        "sign.key": identity.make_signing_key().private,
        "node.key": identity.make_node_key().private,
    }


KEYS, OTHERS = new_keys(), new_keys()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for name in ("one", "two"):
        provision(folder / name, ["boston", "lyon"], Founding(name="heart"), NOW)
    return folder


@dataclass
class Consortium:
    """A founder's folder, and a server's on another machine, with a wire between them that may be cut."""

    folder: Path
    server: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    cut: str = ""  # the verb that does not get through

    def ask(self, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if verb == self.cut:
            raise Unanswered("fl.example.org:443", ConnectionRefusedError())
        sent = json.loads(json.dumps(body))
        return requests(self.server) if verb == "requests" else publish(self.server, sent)

    def agreed(self, line: str) -> bool:
        self.asked.append(line)
        return True

    def approve(self, *names: str, agreed: Callable[[str], bool] | None = None) -> None:
        approve(self.folder, names, NOW, self.ask, agreed or self.agreed, self.said.append)

    def revoke(self, name: str) -> None:
        revoke(self.folder, name, NOW, self.ask, self.said.append)

    def invited(self, site: str = "bern", days: int = 7) -> Signed:
        invite(self.folder, site, NOW, days)
        return read_kit(self.folder / "invitations" / f"{site}.kit").invited

    def joined(self, site: str = "bern", keys: Mapping[str, bytes] = KEYS) -> bytes:
        """A site that was approved; its certificate."""
        assert enrol(self.server, body(make_request(site, keys, self.invited(site))), NOW)["state"] == "waiting"
        self.approve(site)
        return self.collected(site, keys)

    def collected(self, site: str = "bern", keys: Mapping[str, bytes] = KEYS) -> bytes:
        answer = collect(self.server, claim(site, keys))
        assert answer["state"] == "approved"
        return str(answer["certificate"]).encode()

    def comes_in(self, certificate: bytes) -> str:
        """The site as which the gate lets a certificate in."""
        der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
        return Members(self.server).find(der).name

    @property
    def roster(self) -> Roster:
        return read_roster(self.server)


@pytest.fixture
def heart(made: Path, tmp_path: Path) -> Consortium:
    founder = Path(shutil.copytree(made / "one", tmp_path / "heart"))
    server = Path(shutil.move(founder / "server", tmp_path / "server"))
    return Consortium(founder, server)


def body(request: Request) -> Any:
    return json.loads(request.model_dump_json())


def claim(site: str, keys: Mapping[str, bytes]) -> Any:
    return json.loads(make_claim(site, keys["sign.key"]).model_dump_json())


def code(call: Callable[[], object]) -> str:
    with pytest.raises(Unsound) as raised:
        call()
    assert "\n" not in str(raised.value)
    return raised.value.code


def test_a_site_that_was_invited_joins_when_it_is_approved(heart: Consortium) -> None:
    request = make_request("bern", KEYS, heart.invited())
    assert enrol(heart.server, body(request), NOW) == {"state": "waiting", "fingerprint": request.fingerprint}
    assert collect(heart.server, claim("bern", KEYS)) == {"state": "waiting"}
    assert heart.roster.member("bern") is None
    heart.approve()
    assert heart.asked == [f"bern, a new site, keys {request.fingerprint}"]
    answer = collect(heart.server, claim("bern", KEYS))
    assert answer["state"] == "approved"
    certificate, roster = answer["certificate"].encode(), Roster.model_validate_json(answer["roster"])
    authority = (heart.folder / "consortium" / "ca.crt").read_bytes()
    assert identity.flaw(identity.Credential(certificate, KEYS["tls.key"]), authority, NOW) is None
    member = roster.member("bern")
    assert member is not None
    assert (member.tls, member.sign, member.nodes) == (identity.fingerprint(certificate), request.sign, request.nodes)
    assert (roster.edition, [site.name for site in roster.sites]) == (2, ["bern", "boston", "lyon"])
    assert heart.roster == roster == read_roster(heart.folder / "consortium")
    assert heart.comes_in(certificate) == "bern"
    assert requests(heart.server)["requests"] == []


def test_the_same_keys_may_ask_again_and_others_may_not(heart: Consortium) -> None:
    invited = heart.invited()
    for _ in range(2):
        assert enrol(heart.server, body(make_request("bern", KEYS, invited)), NOW)["state"] == "waiting"
    late = NOW + timedelta(days=30)
    assert enrol(heart.server, body(make_request("bern", KEYS, invited)), late)["state"] == "waiting"
    assert code(lambda: enrol(heart.server, body(make_request("bern", OTHERS, invited)), NOW)) == "used"
    heart.approve()
    assert enrol(heart.server, body(make_request("bern", KEYS, invited)), NOW)["state"] == "approved"
    assert code(lambda: enrol(heart.server, body(make_request("bern", OTHERS, invited)), NOW)) == "member"


def test_an_invitation_ends(heart: Consortium) -> None:
    invited = heart.invited(days=2)
    request = body(make_request("bern", KEYS, invited))
    assert code(lambda: enrol(heart.server, request, NOW + timedelta(days=2, seconds=1))) == "expired"
    assert enrol(heart.server, request, NOW + timedelta(days=2, seconds=-1))["state"] == "waiting"


def test_an_invitation_is_for_one_site_of_one_consortium(heart: Consortium, made: Path, tmp_path: Path) -> None:
    invited = heart.invited()
    assert code(lambda: enrol(heart.server, body(make_request("bonn", KEYS, invited)), NOW)) == "another_site"
    other = Consortium(Path(shutil.copytree(made / "two", tmp_path / "two")), heart.server)
    assert code(lambda: enrol(heart.server, body(make_request("bern", KEYS, other.invited())), NOW)) == "forged"
    assert code(lambda: enrol(heart.server, body(make_request("bern", KEYS, present=PRESENT)), NOW)) == "form"


@pytest.mark.parametrize("change", [{"site": "bonn"}, {"nonce": "0" * 64}, {"expires": "2999-01-01T00:00:00Z"}])
def test_a_changed_invitation_is_forged(heart: Consortium, change: dict[str, str]) -> None:
    signed = heart.invited().model_dump(mode="json")
    invited = Signed.model_validate(signed | {"invitation": signed["invitation"] | change})
    request = make_request(invited.invitation.site, KEYS, invited)
    assert code(lambda: enrol(heart.server, body(request), NOW)) == "forged"


def test_who_shows_keys_that_he_does_not_have_is_refused(heart: Consortium) -> None:
    """A stranger who has seen a request would put another one's public keys into his own."""
    invited = heart.invited()
    mine, theirs = body(make_request("bern", KEYS, invited)), body(make_request("bern", OTHERS, invited))
    nodes, proofs = "nodes", "node_proofs"
    for taken in (["csr"], ["sign"], [nodes], ["sign", "proof"], [nodes, proofs], ["proof"], [proofs]):
        mixed = mine | {key: theirs[key] for key in taken}
        assert code(lambda mixed=mixed: enrol(heart.server, mixed, NOW)) == "proof"  # type: ignore[misc]
    assert requests(heart.server)["requests"] == []


def test_a_site_of_two_nodes_has_both_keys_and_joins_with_both_or_not_at_all(heart: Consortium) -> None:
    more = KEYS | {"node-2.key": identity.make_node_key().private}
    invite(heart.folder, "bern", NOW, nodes=2)
    invited = read_kit(heart.folder / "invitations" / "bern.kit").invited
    assert code(lambda: enrol(heart.server, body(make_request("bern", KEYS, invited)), NOW)) == "nodes"
    twice = KEYS | {"node-2.key": KEYS["node.key"]}
    assert code(lambda: enrol(heart.server, body(make_request("bern", twice, invited)), NOW)) == "proof"
    request = make_request("bern", more, invited)
    for proofs in (request.node_proofs[:1], request.node_proofs[::-1], (*request.node_proofs, *request.node_proofs)):
        wrong = body(request) | {"node_proofs": list(proofs)}
        assert code(lambda wrong=wrong: enrol(heart.server, wrong, NOW)) == "proof"  # type: ignore[misc]
    assert enrol(heart.server, body(request), NOW)["state"] == "waiting"
    heart.approve()
    member = heart.roster.member("bern")
    assert member is not None
    assert member.nodes == tuple(identity.node_public(more[name]) for name in ("node.key", "node-2.key"))
    heart.collected()
    for nodes in ({"node.key": more["node-2.key"]}, {"node.key": more["node-2.key"], "node-2.key": more["node.key"]}):
        renewed = body(make_request("bern", {**KEYS, **nodes}, present=member.tls))
        assert code(lambda renewed=renewed: renew(heart.server, "bern", renewed)) == "keys"  # type: ignore[misc]
    assert renew(heart.server, "bern", body(make_request("bern", more, present=member.tls)))["state"] == "waiting"


@pytest.mark.parametrize("nodes", [0, -1, 17])
def test_a_site_has_from_one_to_sixteen_nodes(heart: Consortium, nodes: int) -> None:
    with pytest.raises(UserError, match=f"--nodes {nodes}: must be between 1 and 16"):
        invite(heart.folder, "bern", NOW, nodes=nodes)


def csr(key: Any, sign_with: Any = None) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bern")])
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("hansa://site/boston"), x509.DNSName("evil")])
    builder = x509.CertificateSigningRequestBuilder(subject).add_extension(names, False)
    made = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(key, hashes.SHA256())
    return made.public_bytes(Encoding.PEM).decode()


def test_of_a_csr_only_the_key_counts(heart: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for another site's name, a host's, and to be an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    monkeypatch.setattr("hansa.request.make_csr", lambda *_: csr(key).encode())
    assert enrol(heart.server, body(make_request("bern", KEYS, heart.invited())), NOW)["state"] == "waiting"
    heart.approve()
    certificate = heart.collected()
    assert identity.uris(certificate) == ("hansa://site/bern",)
    assert not identity.is_authority(certificate)
    names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert len(names.value) == 1


def test_a_csr_of_another_kind_of_key_is_refused(heart: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    for curve in (ec.SECP384R1(), ec.SECP256K1()):
        made = csr(ec.generate_private_key(curve)).encode()
        monkeypatch.setattr("hansa.request.make_csr", lambda *_, made=made: made)
        request = body(make_request("bern", KEYS, heart.invited()))
        assert code(lambda request=request: enrol(heart.server, request, NOW)) == "csr"  # type: ignore[misc]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PRESENT = "sha256:" + "0" * 64
SOUND = body(make_request("bern", KEYS, present=PRESENT))


@given(JSON, st.sampled_from([None, *SOUND]))
def test_what_is_no_request_is_told_by_a_code_and_a_line(value: Any, key: str | None) -> None:
    wrong = value if key is None else SOUND | {key: value}
    if wrong == SOUND:
        assert body(read_request(wrong)) == SOUND
    else:
        assert code(lambda: read_request(wrong)) in ("form", "csr", "proof", "another_site")


def test_nobody_collects_who_does_not_wait(heart: Consortium) -> None:
    enrol(heart.server, body(make_request("bern", KEYS, heart.invited())), NOW)
    for one in (claim("bern", OTHERS), claim("bonn", KEYS), claim("boston", KEYS)):
        assert code(lambda one=one: collect(heart.server, one)) == "unknown"  # type: ignore[misc]
    assert code(lambda: collect(heart.server, {"site": "../../etc", "proof": "00" * 64})) == "form"


def test_of_two_invitations_the_later_one_counts(heart: Consortium) -> None:
    early, late = heart.invited(days=7), heart.invited(days=8)
    enrol(heart.server, body(make_request("bern", OTHERS, late)), NOW)
    assert code(lambda: enrol(heart.server, body(make_request("bern", KEYS, early)), NOW)) == "superseded"


def test_who_is_not_agreed_to_goes_on_waiting(heart: Consortium) -> None:
    for site, keys in (("bern", KEYS), ("bonn", OTHERS)):
        enrol(heart.server, body(make_request(site, keys, heart.invited(site))), NOW)
    heart.approve(agreed=lambda line: line.startswith("bonn"))
    assert collect(heart.server, claim("bern", KEYS)) == {"state": "waiting"}
    assert heart.roster.member("bonn") is not None
    with pytest.raises(UserError, match=r"brno: no request of brno's waits at the server \(bern does\)"):
        heart.approve("brno")
    heart.approve("bern")
    assert heart.comes_in(heart.collected()) == "bern"


def test_a_server_that_makes_requests_up_gets_no_certificate(heart: Consortium, made: Path, tmp_path: Path) -> None:
    """What it holds back, it could not sign; what it invents is passed over with a warning."""
    other = Consortium(Path(shutil.copytree(made / "two", tmp_path / "two")), heart.server)
    boston = {name: (heart.folder / "sites" / "boston" / name).read_bytes() for name in ("sign.key", "node.key")}
    tls = next(member.tls for member in heart.roster.sites if member.name == "boston")
    forged = [
        body(make_request("bern", KEYS, other.invited())),
        body(make_request("boston", KEYS, present=tls)),  # its next certificate, with other keys
        body(make_request("boston", {**KEYS, **boston}, present=PRESENT)),  # an old one again
        body(make_request("bern", KEYS, present=PRESENT)),
        body(make_request("bern", {**KEYS, "node.key": boston["node.key"]}, heart.invited())),
        {"site": "bern"},
    ]

    def ask(verb: str, sent: Mapping[str, Any]) -> Mapping[str, Any]:
        assert verb == "requests"
        return {"edition": 1, "requests": forged}

    approve(heart.folder, [], NOW, ask, YES, heart.said.append)
    assert [line for line in heart.said if line.startswith("warning: passed over a request: ")] == heart.said[:-1]
    assert len(heart.said) == len(forged) + 1
    assert read_roster(heart.folder / "consortium").edition == 1


def test_what_was_approved_while_the_server_was_away_is_told_later(heart: Consortium) -> None:
    enrol(heart.server, body(make_request("bern", KEYS, heart.invited())), NOW)
    heart.cut = "publish"
    with pytest.raises(RunFailed, match="tell it by hansa approve"):
        heart.approve()
    assert heart.roster.member("bern") is None
    heart.cut = ""
    heart.approve()
    assert heart.comes_in(heart.collected()) == "bern"
    assert read_roster(heart.folder / "consortium").edition == heart.roster.edition == 2


def test_a_publication_that_was_cut_off_between_two_files_is_ended_by_who_reads_it(
    heart: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed when the new roster has its name and the signature has not."""
    enrol(heart.server, body(make_request("bern", KEYS, heart.invited())), NOW)
    rename, signature = os.replace, heart.server / "roster.sig"

    def dying(source: Path, target: Path) -> None:
        if target == signature:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            heart.approve()
    assert read_roster(heart.server).edition == 2
    assert publish(heart.server, published(heart.folder) | {"certificates": {}}) == {"edition": 2}
    assert heart.comes_in(heart.collected()) == "bern"


def test_a_founder_s_old_folder_does_not_overrule_the_server(heart: Consortium, tmp_path: Path) -> None:
    old = Path(shutil.copytree(heart.folder, tmp_path / "old"))
    heart.joined()
    with pytest.raises(UserError, match="of edition 1, the server's of 2"):
        Consortium(old, heart.server).approve()


def published(folder: Path, revoked: tuple[str, ...] = ()) -> dict[str, Any]:
    own = open_consortium(folder, NOW)
    return {
        "roster": (own.path / "roster.json").read_text(),
        "signature": (own.path / "roster.sig").read_text().strip(),
        "revoked": revoked,
        "revoked_signature": sign_revoked(revoked, own.roster, own.roster_key),
    }


def test_a_server_takes_no_roster_that_is_older_or_another_one_s(heart: Consortium, made: Path) -> None:
    first = published(heart.folder)
    certificate = heart.joined().decode()
    assert publish(heart.server, published(heart.folder)) == {"edition": 2}  # the same again
    assert code(lambda: publish(heart.server, first)) == "edition"
    assert code(lambda: publish(heart.server, published(made / "two"))) == "forged"
    assert code(lambda: publish(heart.server, published(heart.folder) | {"signature": first["signature"]})) == "forged"
    for site in ("boston", "bonn"):
        with_other = published(heart.folder) | {"certificates": {site: certificate}}
        assert code(lambda sent=with_other: publish(heart.server, sent)) == "certificate"  # type: ignore[misc]
    nonsense: Any
    for nonsense in (None, [], {}, published(heart.folder) | {"more": 1}, published(heart.folder) | {"revoked": ["x"]}):
        assert code(lambda sent=nonsense: publish(heart.server, sent)) == "form"  # type: ignore[misc]


def test_nobody_is_revoked_on_the_administrator_s_word(heart: Consortium, made: Path) -> None:
    """Whoever has the administrator's certificate sends the roster that stands, and a list of his own."""
    first = published(heart.folder)
    certificate = (heart.folder / "sites" / "boston" / "tls.crt").read_bytes()
    victim, other = identity.fingerprint(certificate), "sha256:" + "a" * 64
    own = published(heart.folder, (other,))
    theirs = published(made / "two", (victim,))
    for change in (
        {"revoked": (victim,)},
        {"revoked": ()},
        {"revoked_signature": first["revoked_signature"]},
        {"revoked_signature": own["signature"]},
        {"revoked": theirs["revoked"], "revoked_signature": theirs["revoked_signature"]},
    ):
        assert code(lambda sent=own | change: publish(heart.server, sent)) == "forged"  # type: ignore[misc]
    for key in ("revoked", "revoked_signature"):
        lacking = {name: value for name, value in own.items() if name != key}
        assert code(lambda sent=lacking: publish(heart.server, sent)) == "form"  # type: ignore[misc]
    assert heart.comes_in(certificate) == "boston"
    assert json.loads((heart.server / "revoked.json").read_text()) == {"revoked": []}


def test_an_old_list_of_the_revoked_takes_nobody_back(heart: Consortium) -> None:
    first, certificate = published(heart.folder), heart.joined()
    second = published(heart.folder)
    heart.revoke("bern")
    third = published(heart.folder)
    for old in (first, second):
        replayed = third | {key: old[key] for key in ("revoked", "revoked_signature")}
        assert code(lambda sent=replayed: publish(heart.server, sent)) == "forged"  # type: ignore[misc]
    assert publish(heart.server, third) == {"edition": 3}  # one that is shorter, of this edition, is added too
    assert identity.fingerprint(certificate) in json.loads((heart.server / "revoked.json").read_text())["revoked"]


def test_a_roster_goes_to_a_site_that_has_an_older_one(heart: Consortium) -> None:
    heart.joined()
    answer = newer(heart.server, {"edition": 1})
    assert answer["edition"] == 2
    assert answer["roster"].encode() == (heart.server / "roster.json").read_bytes()
    assert newer(heart.server, {"edition": 2}) == {"edition": 2}
    assert code(lambda: newer(heart.server, {})) == "form"


def test_who_is_revoked_is_out_and_its_invitation_is_used_up(heart: Consortium) -> None:
    invited = heart.invited()
    enrol(heart.server, body(make_request("bern", KEYS, invited)), NOW)
    heart.approve()
    certificate = heart.collected()
    heart.revoke("bern")
    with pytest.raises(Unwelcome):
        heart.comes_in(certificate)
    assert identity.fingerprint(certificate) in json.loads((heart.server / "revoked.json").read_text())["revoked"]
    assert [site.name for site in heart.roster.sites] == ["boston", "lyon"]
    assert code(lambda: enrol(heart.server, body(make_request("bern", KEYS, invited)), NOW)) == "used"
    assert code(lambda: collect(heart.server, claim("bern", KEYS))) == "unknown"
    old = body(make_request("bern", KEYS, invited))  # a server that shows the founder the old request again
    ask = lambda verb, sent: {"edition": heart.roster.edition, "requests": [old]}  # noqa: E731
    approve(heart.folder, [], NOW, ask, YES, heart.said.append)
    assert heart.said[-2:] == [
        "warning: passed over a request: bern's invitation was used already",
        "nobody waits to be approved",
    ]
    again = heart.joined("bern", OTHERS)
    assert heart.comes_in(again) == "bern"


def test_a_revocation_that_the_server_did_not_hear_of_is_told_later(heart: Consortium) -> None:
    certificate = heart.joined()
    heart.cut = "publish"
    with pytest.raises(RunFailed, match="tell it by hansa approve"):
        heart.revoke("bern")
    assert heart.comes_in(certificate) == "bern"
    heart.cut = ""
    heart.approve()
    with pytest.raises(Unwelcome):
        heart.comes_in(certificate)


def test_a_server_s_folder_beside_the_consortium_s_hears_of_it_even_when_the_server_is_down(
    made: Path, tmp_path: Path
) -> None:
    founder = Path(shutil.copytree(made / "one", tmp_path / "heart"))
    heart = Consortium(founder, founder / "server", cut="publish")
    certificate = (founder / "sites" / "boston" / "tls.crt").read_bytes()
    assert heart.comes_in(certificate) == "boston"
    with pytest.raises(RunFailed, match="tell it by hansa approve"):
        heart.revoke("boston")
    with pytest.raises(Unwelcome):
        heart.comes_in(certificate)


def test_nobody_of_that_name_is_a_line(heart: Consortium) -> None:
    with pytest.raises(UserError, match=r"bern: no site or person of heart \(boston, .*lyon\)"):
        heart.revoke("bern")
    with pytest.raises(UserError, match="Boston: heart has boston already"):
        heart.invited("Boston")


def test_a_renewed_certificate_and_the_one_before_both_count_until_the_site_is_revoked(heart: Consortium) -> None:
    first = heart.joined()
    renewed = {**KEYS, "tls.key": identity.make_tls_key()}
    asked = body(make_request("bern", renewed, present=identity.fingerprint(first)))
    assert renew(heart.server, "bern", asked)["state"] == "waiting"
    assert collect(heart.server, claim("bern", KEYS)) == {"state": "waiting"}
    assert heart.comes_in(first) == "bern"
    heart.approve()
    assert heart.asked[-1].startswith("bern, its next certificate, keys ")
    second = heart.collected()
    assert second != first
    assert identity.certified_key(second) != identity.certified_key(first)
    assert heart.comes_in(first) == heart.comes_in(second) == "bern"
    assert code(lambda: renew(heart.server, "bern", asked)) == "keys"  # once more
    heart.revoke("bern")
    for certificate in (first, second):
        with pytest.raises(Unwelcome):
            heart.comes_in(certificate)


def test_a_site_renews_for_itself_and_with_its_own_keys(heart: Consortium) -> None:
    present = identity.fingerprint(heart.joined())
    request = body(make_request("bern", KEYS, present=present))
    assert code(lambda: renew(heart.server, "boston", request)) == "another_site"
    assert code(lambda: renew(heart.server, "bern", body(make_request("bern", OTHERS, present=present)))) == "keys"
    assert code(lambda: renew(heart.server, "bern", SOUND | {"proof": "0" * 128})) == "proof"


@pytest.mark.parametrize("days", [0, -1, 366])
def test_an_invitation_has_a_time(heart: Consortium, days: int) -> None:
    with pytest.raises(UserError, match=f"--days {days}: must be between 1 and 365"):
        heart.invited(days=days)


def test_a_kit_is_for_its_owner_only(heart: Consortium) -> None:
    heart.invited()
    assert (heart.folder / "invitations" / "bern.kit").stat().st_mode & 0o777 == 0o600


def test_a_person_who_is_revoked_asks_no_more(tmp_path: Path) -> None:
    people = [(Role.RESEARCHER, "ann"), (Role.AUDITOR, "bob")]
    provision(tmp_path / "heart", ["boston"], Founding(), NOW, people)
    heart = Consortium(tmp_path / "heart", tmp_path / "heart" / "server")
    shown = {name: certificate(heart.folder / "people" / name) for name in ("ann", "bob")}
    assert [Callers(heart.server).find(one).name for one in shown.values()] == ["ann", "bob"]
    heart.revoke("ann")
    with pytest.raises(Unwelcome, match="researcher ann: the certificate was revoked"):
        Callers(heart.server).find(shown["ann"])
    assert Callers(heart.server).find(shown["bob"]).name == "bob"


def certificate(folder: Path) -> bytes:
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).public_bytes(Encoding.DER)
