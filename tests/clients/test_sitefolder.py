"""A site's folder: it opens only where file, keys, certificates and roster are of one site and one consortium."""

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from clients.sitefolder import open_site_folder
from hansa.errors import UserError
from hansa.startup import Startup, read_startup
from server.provision import Founding, provision

NOW = datetime.now(UTC)
FILES = ["ca.crt", "tls.crt", "tls.key", "sign.key", "node.key", "roster.json", "roster.sig", "roster.pub", "site.toml"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two consortia of one name with sites of the same names."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("one", "two"):
        provision(folder / name, ["boston", "lyon"], Founding(name="heart"), NOW)
    return folder


@pytest.fixture
def boston(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "one" / "sites" / "boston", tmp_path / "boston"))


def problem(folder: Path, now: datetime = NOW) -> str:
    with pytest.raises(UserError) as raised:
        open_site_folder(folder, now)
    (line,) = raised.value.problems
    assert "\n" not in line
    return line.removeprefix(f"{folder}/")


def test_a_folder_as_it_was_made_opens(boston: Path) -> None:
    folder = open_site_folder(boston, NOW)
    assert (folder.name, folder.roster.consortium, folder.path) == ("boston", "heart", boston)
    assert folder.startup == read_startup(boston, NOW)
    member = folder.roster.member("boston")
    assert member is not None
    assert member.sign == folder.sign_key.public_key().public_bytes_raw().hex()


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_a_line(boston: Path, file: str) -> None:
    (boston / file).unlink()
    said = f"{boston}: no site's folder, " if file == "site.toml" else f"{file}: no such file or directory; "
    assert problem(boston).startswith(said)


@pytest.mark.parametrize("file", sorted(set(FILES) - {"site.toml"}))
def test_a_file_of_another_consortium_is_a_line(made: Path, boston: Path, file: str) -> None:
    shutil.copy(made / "two" / "sites" / "boston" / file, boston)
    assert problem(boston) in {
        "roster.json: its signature (roster.sig) is not by the consortium's roster key (roster.pub): one of the three "
        "was changed; copy all three anew from the consortium's folder",
        "ca.crt: not the authority that roster.json names; copy both from one consortium",
        "tls.crt: the certificate was not signed by the authority beside it; ask the consortium for a new one",
        "tls.crt: the certificate does not belong to the key beside it; ask the consortium for a new one",
        f"{file}: not the one that roster.json has for boston; copy both from the site's own folder",
    }


@pytest.mark.parametrize("file", ["sign.key", "node.key"])
def test_another_site_s_key_is_a_line(made: Path, boston: Path, file: str) -> None:
    shutil.copy(made / "one" / "sites" / "lyon" / file, boston)
    assert (
        problem(boston) == f"{file}: not the one that roster.json has for boston; copy both from the site's own folder"
    )


def test_a_site_cannot_take_another_s_name(made: Path, boston: Path) -> None:
    line = "tls.crt: not the one that roster.json has for boston; copy both from the site's own folder"
    for file in ("tls.crt", "tls.key"):
        shutil.copy(made / "one" / "sites" / "lyon" / file, boston)
    assert problem(boston) == line
    text = (boston / "site.toml").read_text()
    (boston / "site.toml").write_text(text.replace('name = "boston"', 'name = "bern"'))
    assert problem(boston) == 'site.toml [site] name: "bern" is not in roster.json (sites: boston, lyon)'


@pytest.mark.parametrize("file", sorted(set(FILES) - {"site.toml"}))
@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_nonsense_in_a_file_is_a_line(boston: Path, file: str, content: bytes) -> None:
    (boston / file).write_bytes(content)
    assert re.search(r"copy (it|both|all three) anew|copy both from", problem(boston))


def test_a_site_of_several_nodes_has_a_key_for_each(tmp_path: Path) -> None:
    provision(tmp_path / "heart", ["boston"], Founding(), NOW, nodes=3)
    boston = tmp_path / "heart" / "sites" / "boston"
    assert open_site_folder(boston, NOW).node_keys == ["node.key", "node-2.key", "node-3.key"]
    shutil.copy(boston / "node-2.key", boston / "node-3.key")
    assert problem(boston).startswith("node-3.key: not the one that roster.json has for boston")
    (boston / "node-3.key").unlink()
    assert problem(boston).startswith("node-3.key: no such file or directory; ")


def test_a_changed_byte_in_the_roster_is_a_line(boston: Path) -> None:
    data = (boston / "roster.json").read_bytes()
    (boston / "roster.json").write_bytes(data.replace(b'"lyon"', b'"lion"'))
    assert problem(boston).startswith("roster.json: its signature (roster.sig) is not by the consortium's roster key")


def test_a_certificate_has_its_time(boston: Path) -> None:
    assert problem(boston, NOW + timedelta(days=366)).startswith("tls.crt: the certificate ended on ")
    line = problem(boston, NOW - timedelta(minutes=6))
    assert line.startswith("tls.crt: the certificate begins on ")
    assert "set this machine's clock" in line
    assert open_site_folder(boston, NOW - timedelta(minutes=4)).name == "boston"


def test_mistakes_in_site_toml_come_first_and_all_at_once(boston: Path) -> None:
    (boston / "roster.json").unlink()
    (boston / "site.toml").write_text("[site]\nname = 1\n")
    with pytest.raises(UserError) as raised:
        open_site_folder(boston, NOW)
    assert [line.partition(":")[0] for line in raised.value.problems] == [
        "site.toml [site] name",
        "site.toml [site] server",
    ]


def secrets_of(folder: Path) -> list[str]:
    """Every private number of the folder as text could show it: the lines of the files, and the numbers themselves."""
    lines = [line for file in folder.glob("*.key") for line in file.read_text().splitlines() if "-----" not in line]
    tls = load_pem_private_key((folder / "tls.key").read_bytes(), None)
    node = load_ssh_private_key((folder / "node.key").read_bytes(), None)
    sign = load_pem_private_key((folder / "sign.key").read_bytes(), None)
    numbers = [key.private_numbers().private_value for key in (tls, node)]  # type: ignore[union-attr]
    raw = sign.private_bytes_raw()  # type: ignore[union-attr]
    return [*lines, *map(str, numbers), *(f"{number:x}" for number in numbers), raw.hex(), repr(raw)]


def test_no_object_shows_a_key(boston: Path) -> None:
    folder = open_site_folder(boston, NOW)
    shown = "".join(
        f"{one}{one!r}" for one in (folder, folder.startup, folder.startup.tls, folder.sign_key, folder.roster)
    )
    assert isinstance(folder.startup, Startup)
    assert "BEGIN CERTIFICATE" in shown
    assert [secret for secret in secrets_of(boston) if secret in shown] == []


@pytest.mark.parametrize("file", ["tls.key", "sign.key", "node.key"])
def test_no_message_shows_a_key(boston: Path, file: str) -> None:
    secrets, text = secrets_of(boston), (boston / file).read_text()
    (boston / file).write_text(text[: len(text) // 2])
    line = problem(boston)
    assert [secret for secret in secrets if secret in line] == []
