"""The folders of a consortium's people: who they are to the server, and for how long."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hansa.cli import main
from hansa.errors import UserError
from hansa.identity import fingerprint, uris
from hansa.person import open_person
from hansa.roles import Role, named
from server.consortium import ISSUED
from server.people import FOUNDER, administrator
from server.provision import Founding, provision
from server.revoked import Revoked

NOW = datetime.now(UTC)
PEOPLE = [(Role.RESEARCHER, "ann"), (Role.AUDITOR, "bob")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "heart"
    provision(folder, ["boston"], Founding(hosts=("fl.example.org",)), NOW, PEOPLE)
    return folder


@pytest.fixture
def heart(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "heart"))


def test_a_certificate_says_who_somebody_is(heart: Path) -> None:
    for role, name in PEOPLE:
        folder = heart / "people" / name
        assert {path.name for path in folder.iterdir()} == {"ca.crt", "person.toml", "tls.crt", "tls.key"}
        person = open_person(folder, NOW)
        assert (person.role, person.name, person.control.way.server) == (role, name, "fl.example.org:9443")
        assert named(uris((folder / "tls.crt").read_bytes())) == (role, name)
    assert open_person(heart / "consortium", NOW).role is Role.ADMINISTRATOR


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("hansa://site/",),
        ("hansa://nobody/x",),
        ("hansa://king/x",),
        ("hansa://site/../x",),
        ("hansa://site/x\n",),
        ("https://site/x",),
        ("hansa://site/x", "hansa://researcher/x"),
        ("hansa://site/x/y",),
    ],
)
def test_what_names_nobody_or_two_is_nobody(uris: tuple[str, ...]) -> None:
    assert named(uris) is None


def test_a_folder_with_another_one_s_certificate_is_told(heart: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        shutil.copy(heart / "people" / "ann" / name, heart / "people" / "bob" / name)
    with pytest.raises(UserError, match=r"tls\.crt: the certificate is not that of auditor bob"):
        open_person(heart / "people" / "bob", NOW)
    with pytest.raises(UserError, match="the certificate ended on"):
        open_person(heart / "people" / "ann", NOW + timedelta(days=366))


def test_people_are_added_and_the_roster_stays_as_it_is(heart: Path) -> None:
    before = (heart / "server" / "roster.json").read_bytes()
    said = provision(heart, [], Founding(), NOW, [(Role.RESEARCHER, "cyd")])
    assert said == [f"{heart}/people/cyd: for researcher cyd, over a way that nobody else reads"]
    assert open_person(heart / "people" / "cyd", NOW).role is Role.RESEARCHER
    assert (heart / "server" / "roster.json").read_bytes() == before


@pytest.mark.parametrize(("sites", "people"), [(["Ann"], []), ([], ["Boston"]), ([], ["founder"]), ([], ["ann"])])
def test_nobody_gets_another_one_s_name(heart: Path, sites: list[str], people: list[str]) -> None:
    with pytest.raises(UserError, match=r"already|is kept for who founds it"):
        provision(heart, sites, Founding(), NOW, [(Role.RESEARCHER, name) for name in people])


def test_a_name_is_free_again_when_it_was_revoked_and_its_folder_is_gone(heart: Path) -> None:
    first = fingerprint((heart / "consortium" / ISSUED / "ann.crt").read_bytes())
    shutil.rmtree(heart / "people" / "ann")
    with pytest.raises(UserError, match="already"):
        provision(heart, [], Founding(), NOW, PEOPLE[:1])
    Revoked(heart / "consortium").add(first)
    provision(heart, [], Founding(), NOW, PEOPLE[:1])
    assert fingerprint((heart / "consortium" / ISSUED / "ann.crt").read_bytes()) != first


def test_the_founder_s_certificate_is_made_anew_before_it_ends(heart: Path) -> None:
    own = heart / "consortium" / "tls.crt"
    first = own.read_bytes()
    assert administrator(heart, NOW).name == FOUNDER
    assert own.read_bytes() == first
    late = NOW + timedelta(days=340)
    assert administrator(heart, late).role is Role.ADMINISTRATOR
    assert own.read_bytes() != first
    own.unlink()  # as in a consortium that was made before there were people
    administrator(heart, late)
    assert named(uris(own.read_bytes())) == (Role.ADMINISTRATOR, FOUNDER)


def test_without_a_public_port_there_is_nobody_to_ask_from_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave --direct out"):
        provision(tmp_path / "new", ["boston"], Founding(direct=True), NOW, PEOPLE)
    assert not (tmp_path / "new").exists()
    provision(tmp_path / "heart", ["boston"], Founding(direct=True), NOW)
    with pytest.raises(UserError, match="has no public port"):
        provision(tmp_path / "heart", [], Founding(), NOW, PEOPLE)
    with pytest.raises(UserError, match="has no public port"):
        administrator(tmp_path / "heart", NOW)


def test_the_command_makes_people_s_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "heart"
    people = ["--researcher", "ann", "--auditor", "bob", "--administrator", "eve"]
    assert main(["provision", str(folder), *people]) == 0
    assert sorted(path.name for path in (folder / "people").iterdir()) == ["ann", "bob", "eve"]
    assert main(["provision", str(folder)]) == 2
    assert "nothing to add" in capsys.readouterr().err
