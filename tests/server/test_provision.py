"""`hansa provision`: who can prove what to whom with the folders that it makes."""

import shutil
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_private_key

from clients.sitefolder import open_site_folder
from hansa.cli import main
from hansa.errors import UserError
from hansa.routes import CONTROL, FLEET, session_name
from hansa.startup import read_roster, read_startup
from server.provision import Founding, provision
from server.serverfile import load_server_file

NOW = datetime.now(UTC)
OPENSSL = shutil.which("openssl")
LOCAL = Founding()


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "heart"
    provision(folder, ["lyon", "boston"], Founding(hosts=("fl.example.org", "192.0.2.7"), port=9000), NOW)
    return folder


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers") / "heart"
    provision(folder, ["boston"], LOCAL, NOW)
    return folder


@pytest.fixture
def mine(heart: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(heart, tmp_path / "heart"))


def context(folder: Path, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(folder / "ca.crt")
    made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return made


def shake_hands(server: Path, client: Path, host: str = "localhost") -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Server and client of a TLS connection in memory, after a byte has come through each way."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        context(server, server=True).wrap_bio(up, down, server_side=True),
        context(client, server=False).wrap_bio(down, up, server_hostname=host),
    )
    waiting = {*ends}
    for _ in range(10):
        for end in [*waiting]:
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    for writer, reader in (ends, ends[::-1]):
        writer.write(b"x")
        assert reader.read(1) == b"x"
    return ends


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "fl.example.org", "192.0.2.7", FLEET, CONTROL, session_name("a run")]
)
def test_a_site_and_the_server_know_each_other(heart: Path, host: str) -> None:
    server, _ = shake_hands(heart / "server", heart / "sites" / "boston", host)
    names = (server.getpeercert() or {})["subjectAltName"]
    assert names == (("URI", "hansa://site/boston"),)


@pytest.mark.parametrize(
    ("server", "client", "host"),
    [
        pytest.param("heart/server", "heart/sites/boston", "evil.example.org", id="another host"),
        pytest.param("heart/server", "strangers/sites/boston", "localhost", id="a site of another consortium"),
        pytest.param("heart/sites/lyon", "heart/sites/boston", "localhost", id="a site as the server"),
        pytest.param("heart/server", "heart/server", "localhost", id="the server as a site"),
    ],
)
def test_nobody_passes_for_another(heart: Path, strangers: Path, server: str, client: str, host: str) -> None:
    at = {"heart": heart, "strangers": strangers}
    folders = [at[name.partition("/")[0]] / name.partition("/")[2] for name in (server, client)]
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folders[0], folders[1], host)


def test_a_certificate_is_good_for_a_year(tmp_path: Path) -> None:
    provision(tmp_path / "now", ["boston"], LOCAL, NOW - timedelta(days=364))
    shake_hands(tmp_path / "now" / "server", tmp_path / "now" / "sites" / "boston")
    provision(tmp_path / "over", ["boston"], LOCAL, NOW - timedelta(days=366))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path / "over" / "server", tmp_path / "over" / "sites" / "boston")


def test_a_clock_that_is_minutes_behind_does_not_matter(tmp_path: Path) -> None:
    now = datetime.now(UTC)  # not when the tests were collected: that may be minutes ago
    provision(tmp_path / "behind", ["boston"], LOCAL, now + timedelta(minutes=4))
    shake_hands(tmp_path / "behind" / "server", tmp_path / "behind" / "sites" / "boston")
    provision(tmp_path / "far", ["boston"], LOCAL, now + timedelta(minutes=9))
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shake_hands(tmp_path / "far" / "server", tmp_path / "far" / "sites" / "boston")


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command")
@pytest.mark.parametrize(
    ("folder", "purpose", "good"),
    [
        ("server", "sslserver", True),
        ("server", "sslclient", False),
        ("sites/boston", "sslclient", True),
        ("sites/boston", "sslserver", False),
    ],
)
def test_openssl_agrees(heart: Path, folder: str, purpose: str, good: bool) -> None:
    at = heart / folder
    files = ["-CAfile", str(at / "ca.crt"), str(at / "tls.crt")]
    verify = [str(OPENSSL), "verify", "-x509_strict", "-purpose", purpose, *files]
    assert (subprocess.run(verify, capture_output=True, check=False).returncode == 0) is good


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_certificates_say_what_they_are_for(heart: Path) -> None:
    ca, leaf = certificate(heart / "server" / "ca.crt"), certificate(heart / "sites" / "lyon" / "tls.crt")
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    assert ca.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert timedelta(days=3650) < ca.not_valid_after_utc - NOW < timedelta(days=3654)
    for one in (ca, leaf):
        key = one.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"


def test_serial_numbers_and_keys_are_each_once(heart: Path) -> None:
    leaves = [certificate(path) for path in [heart / "server" / "tls.crt", *heart.glob("sites/*/tls.crt")]]
    leaves.append(certificate(heart / "consortium" / "tls.crt"))
    assert len({leaf.serial_number for leaf in leaves}) == len(leaves) == 4
    keys = [*heart.glob("**/*.key"), heart / "server" / "superexec.secret"]
    assert len({path.read_bytes() for path in keys}) == len(keys) == 3 + 1 + 2 * 3 + 1


def test_only_their_owner_reads_the_folders(heart: Path) -> None:
    folders = [heart, *(path for path in heart.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    private = [*heart.rglob("*.key"), *heart.rglob("*.secret"), *heart.rglob("*.toml")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_each_folder_holds_what_its_machine_needs_and_no_more(heart: Path) -> None:
    common = {"ca.crt", "roster.json", "roster.pub", "roster.sig"}
    both = common | {"tls.crt", "tls.key"}
    assert {path.name for path in heart.iterdir()} == {"consortium", "server", "sites"}
    held = {path.name: {file.name for file in path.iterdir()} for path in [*heart.iterdir(), *heart.glob("sites/*")]}
    founder_s = {"ca.key", "roster.key", "consortium.toml", "person.toml", "issued"}
    assert held["consortium"] == both | founder_s | {"revoked.json"}
    assert held["server"] == both | {"superexec.secret", "server.toml", "revoked.json"}
    assert held["boston"] == held["lyon"] == both | {"sign.key", "node.key", "site.toml"}
    assert len((heart / "server" / "superexec.secret").read_bytes()) == 32


def test_the_node_key_is_the_form_that_flower_reads(heart: Path) -> None:
    """An OpenSSH private key without password; its SPKI is what the server registers."""
    for member in read_roster(heart / "server").sites:
        private = (heart / "sites" / member.name / "node.key").read_bytes()
        assert private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        assert load_ssh_private_key(private, password=None).public_key() == load_pem_public_key(
            member.nodes[0].encode()
        )


def test_the_files_it_writes_can_be_read(heart: Path) -> None:
    server = load_server_file(heart / "server" / "server.toml").server
    assert (server.public, server.reached) == ("0.0.0.0:9000", "fl.example.org:9000")
    assert (server.flower, server.sessions) == ("127.0.0.1:9092", "127.0.0.1:0")
    site = open_site_folder(heart / "sites" / "boston", NOW)
    assert site.file.network.gate is True
    assert (site.name, site.file.site.server, site.roster.consortium) == ("boston", "fl.example.org:9000", "heart")
    assert (site.file.apps.allowed, site.file.policy.allow_unprotected) == ((), False)
    assert not server.model_extra
    assert site.file.flower.telemetry is False


@pytest.mark.parametrize(
    ("host", "site", "listens"),
    [
        ("localhost", "localhost:9443", "127.0.0.1:9443"),
        ("127.0.0.1", "127.0.0.1:9443", "127.0.0.1:9443"),
        ("fl.example.org", "fl.example.org:9443", "0.0.0.0:9443"),
        ("2001:db8::7", "[2001:db8::7]:9443", "[::]:9443"),
    ],
)
def test_one_public_port_is_the_default_and_open_to_others_only_where_there_are_others(
    tmp_path: Path, host: str, site: str, listens: str
) -> None:
    provision(tmp_path / "heart", ["boston"], Founding(hosts=(host,)), NOW)
    server = load_server_file(tmp_path / "heart" / "server" / "server.toml").server
    assert (server.public, server.reached) == (listens, site)
    found = open_site_folder(tmp_path / "heart" / "sites" / "boston", NOW).file
    assert (found.site.server, found.network.gate) == (site, True)


def test_flower_and_the_public_port_never_clash(tmp_path: Path) -> None:
    provision(tmp_path / "heart", ["boston"], Founding(port=9092), NOW)
    server = load_server_file(tmp_path / "heart" / "server" / "server.toml").server
    assert (server.public, server.flower) == ("127.0.0.1:9092", "127.0.0.1:9093")


@pytest.mark.parametrize(
    ("host", "site", "session", "announce"),
    [
        ("localhost", "localhost:9092", "127.0.0.1:9093", None),
        ("::1", "[::1]:9092", "127.0.0.1:9093", None),
        ("fl.example.org", "fl.example.org:9092", "0.0.0.0:9093", "fl.example.org:9093"),
        ("2001:db8::7", "[2001:db8::7]:9092", "[::]:9093", "[2001:db8::7]:9093"),
    ],
)
def test_directly_sessions_listen_to_others_only_where_there_are_others(
    tmp_path: Path, host: str, site: str, session: str, announce: str | None
) -> None:
    provision(tmp_path / "heart", ["boston"], Founding(hosts=(host,), direct=True), NOW)
    server = load_server_file(tmp_path / "heart" / "server" / "server.toml").server
    assert (server.public, server.session, server.announce) == (None, session, announce)
    found = open_site_folder(tmp_path / "heart" / "sites" / "boston", NOW).file
    assert (found.site.server, found.network.gate) == (site, False)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_later_site_joins_and_nothing_else_changes_but_the_roster(mine: Path) -> None:
    before = contents(mine)
    provision(mine, ["bern"], LOCAL, NOW)
    after = contents(mine)
    changed = {path.name for path in before if after[path] != before[path]}
    assert changed == {"roster.json", "roster.sig"}
    assert {path.parts[:2] for path in after.keys() - before.keys()} == {("sites", "bern")}
    rosters = {read_roster(at) for at in [mine / "server", mine / "consortium", *mine.glob("sites/*")]}
    (roster,) = rosters
    assert (roster.edition, [site.name for site in roster.sites]) == (2, ["bern", "boston", "lyon"])
    for name in ("bern", "boston", "lyon"):
        shake_hands(mine / "server", open_site_folder(mine / "sites" / name, NOW).path)
    assert open_site_folder(mine / "sites" / "bern", NOW).file.site.server == "fl.example.org:9000"


def test_a_site_joins_where_the_folders_were_handed_over(mine: Path) -> None:
    shutil.rmtree(mine / "server")
    shutil.rmtree(mine / "sites")
    provision(mine, ["bern"], LOCAL, NOW)
    assert [site.name for site in open_site_folder(mine / "sites" / "bern", NOW).roster.sites] == [
        "bern",
        "boston",
        "lyon",
    ]


def refused(folder: Path, *sites: str, founding: Founding = LOCAL, now: datetime = NOW) -> tuple[str, ...]:
    """The lines of the refusal, of which nothing comes."""
    before = contents(folder.parent)
    with pytest.raises(UserError) as raised:
        provision(folder, sites, founding, now)
    assert contents(folder.parent) == before
    assert not [path for path in folder.parent.rglob(".*")]
    return raised.value.problems


def test_nothing_is_overwritten(mine: Path) -> None:
    assert refused(mine, "bern", "Boston") == ("--site Boston: heart has boston already",)
    (mine / "sites" / "bern").mkdir()
    assert refused(mine, "bern") == (f"{mine}/sites/bern: is there, but not in the roster; remove it and try again",)
    other = mine.parent / "other"
    (other / "consortium").mkdir(parents=True)
    (other / "consortium").rmdir()
    line = f"{other}: is there, and no consortium in it; give a new folder, or that of a consortium"
    assert refused(other, "bern") == (line,)


def test_what_was_settled_is_not_changed(mine: Path) -> None:
    line = f"{mine}: --consortium, --host, --port and --direct were settled when it was made; leave them out"
    for founding in (Founding(name="liver"), Founding(hosts=("localhost",)), Founding(port=1), Founding(direct=True)):
        assert refused(mine, "bern", founding=founding) == (line,)


def test_wrong_names_are_told_at_once(tmp_path: Path) -> None:
    name = "up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
    new = tmp_path / "new"
    assert refused(new, "../a", "b c", "x", "X") == (
        f"--site ../a: must be {name}",
        f"--site b c: must be {name}",
        "--site x: stands twice; names must differ in more than upper and lower case",
    )
    assert refused(new, "a", founding=Founding("b c", ("h:1", "x_y", "1.2.3", "-a"), 0)) == (
        f"--consortium b c: must be {name}",
        "--host h:1: must be a DNS name or an IP address, without a port",
        "--host 1.2.3: must be a DNS name or an IP address, without a port",
        "--host -a: must be a DNS name or an IP address, without a port",
        "--port 0: must be between 1 and 65535",
    )
    line = "--port 65535: must be between 1 and 65534; the sessions have the next"
    assert refused(new, "a", founding=Founding(port=65535, direct=True)) == (line,)


def test_an_authority_that_cannot_sign_is_told(mine: Path, strangers: Path) -> None:
    own = mine / "consortium"
    shutil.copy(strangers / "consortium" / "roster.key", own)
    line = f"{own}/roster.key: does not belong to roster.pub; put back the one that does"
    assert refused(mine, "bern") == (line,)
    shutil.copy(strangers / "consortium" / "ca.key", own)
    (line,) = refused(mine, "bern")
    assert line.startswith(f"{own}/ca.crt: the certificate does not belong to the key beside it; put back the pair")
    (own / "ca.key").write_text("x")
    assert refused(mine, "bern") == (f"{own}: ca.key or roster.key is no PEM key; put back the right one",)
    (own / "ca.key").unlink()
    (line,) = refused(mine, "bern")
    assert line == f"{own}/ca.key: no such file or directory; copy it from what `hansa provision` made"


def test_after_ten_years_the_authority_has_ended(mine: Path) -> None:
    (line,) = refused(mine, "bern", now=NOW + timedelta(days=3653))
    assert "ca.crt: the certificate ended on" in line


def test_a_folder_that_cannot_be_written_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as raised:
        provision(tmp_path / "file" / "new", ["a"], LOCAL, NOW)
    (problem,) = raised.value.problems
    assert problem.startswith(f"{tmp_path}/file: file exists; make room")


def test_no_certificate_outlives_the_authority(mine: Path) -> None:
    late = NOW + timedelta(days=3500)
    provision(mine, ["bern"], LOCAL, late)
    at = mine / "sites" / "bern"
    assert certificate(at / "tls.crt").not_valid_after_utc == certificate(at / "ca.crt").not_valid_after_utc


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "heart"
    assert main(["provision", str(folder), "--site", "boston", "--site", "lyon", "--port", "9000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *(f"{folder}/{name}" for name in ("consortium", "server", "sites/boston", "sites/lyon"))
    ]
    assert read_startup(folder / "server", datetime.now(UTC)).roster.consortium == "heart"
    assert main(["provision", str(folder), "--site", "lyon"]) == 2
    assert capsys.readouterr().err == "error: --site lyon: heart has lyon already\n"
