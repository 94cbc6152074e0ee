"""`hansa site doctor`: each thing that may be wrong at a site is named in one line, with the mend, and no secret."""

import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from clients import checkup, wayout
from clients.doctor import examine, look_at_apps, look_at_keys, look_at_versions
from clients.sitefile import load_site_file
from hansa import identity
from hansa.identity import Credential
from hansa.routes import CONTROL
from server.provision import Founding, provision

if TYPE_CHECKING:
    from tests.joining.conftest import Heart, HttpProxy, Relay

DIGEST = "sha256:" + "0" * 64
ROWS = "age,sex,disease\n63,1,0\n41,,1\n57,0,1\n38,1,0\n70,1,1\n"


@pytest.fixture(scope="module")
def basel(heart: "Heart", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site that has joined, with its site.toml filled in."""
    folder = heart.joined("basel", tmp_path_factory.mktemp("sites") / "basel")
    (folder / "rows.csv").write_text(ROWS)
    change(folder, "allowed = []", f'allowed = ["{DIGEST}"]')
    change(folder, 'device = "auto"', 'device = "cpu"')
    change(folder, '#[data]\n#csv = "patients.csv"\n#target', '[data]\ncsv = "rows.csv"\nmissing = "mean"\ntarget')
    return folder


@pytest.fixture
def site(basel: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(basel, tmp_path / "basel"))


def change(folder: Path, old: str, new: str) -> None:
    text = (folder / "site.toml").read_text()
    assert old in text
    (folder / "site.toml").write_text(text.replace(old, new))


def way_out(folder: Path) -> list[str]:
    """What is found on the way to the server."""
    return [str(one) for one in wayout.look_at_way(load_site_file(folder / "site.toml"), folder)]


def mends(lines: list[str]) -> list[str]:
    return [line.removeprefix("mend  ") for line in lines if line.startswith("mend  ")]


def test_all_is_well(site: Path, heart: "Heart") -> None:
    said: list[str] = []
    assert examine(site, said.append)
    assert {line[:6] for line in said} == {"ok    "}
    assert [line[6:].partition(":")[0].partition(" lets")[0] for line in said] == [
        "versions",
        "keys",
        "tls.crt",
        "connection",
        "TLS",
        "the server",
        "clock",
        "[training] device",
        "disk",
        "[data]",
        "[apps]",
        *["[policy]"] * 4,
    ]
    assert '5 rows, 2 feature columns, 1 values missing (missing = "mean"); 4 to train on, 1 to test' in said[9]


def test_the_command_says_by_its_exit_code_whether_all_is_well(site: Path) -> None:
    """In a folder where nothing but the rows is wrong."""
    (site / "rows.csv").unlink()
    command = [sys.executable, "-c", "import sys; from hansa.cli import main; sys.exit(main())", "site", "doctor"]
    done = subprocess.run([*command, str(site)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = mends(done.stdout.splitlines())
    assert line == f"[data]: {site / 'rows.csv'}: there is no such file or folder; correct the path in [data]"


def test_a_folder_that_is_none_is_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    assert not examine(tmp_path, said.append)
    (line,) = mends(said)
    assert line.startswith(f"{tmp_path}/site.toml: no such file or directory")


def test_each_mistake_in_site_toml_is_a_line(site: Path) -> None:
    change(site, 'device = "cpu"', 'device = "tpu"\ncolour = 1')
    said: list[str] = []
    assert not examine(site, said.append)
    assert [line.partition(":")[0] for line in mends(said)] == [
        "site.toml [training] device",
        "site.toml [training] colour",
    ]


def test_a_port_where_nobody_listens_is_told(site: Path, heart: "Heart") -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    change(site, f":{heart.port}", f":{port}")
    (line,) = mends(way_out(site))
    assert line.startswith(f"connection: 127.0.0.1:{port}: connection refused; is the server up")


def test_a_name_that_is_not_known_is_told(site: Path, heart: "Heart") -> None:
    change(site, f"127.0.0.1:{heart.port}", "no-such-host.invalid:443")
    (line,) = way_out(site)
    assert line.startswith("mend  name: no-such-host.invalid is not known here; correct server in site.toml")


def test_a_name_is_told_with_what_it_stands_for(site: Path, heart: "Heart") -> None:
    change(site, f"127.0.0.1:{heart.port}", f"localhost:{heart.port}")
    lines = way_out(site)
    assert mends(lines) == []
    assert lines[0].startswith("ok    name: localhost is ")


def test_a_server_with_two_ports_is_looked_at_too(heart: "Heart", tmp_path: Path) -> None:
    provision(tmp_path / "two", ["boston"], Founding(direct=True), datetime.now(UTC))
    server, folder = tmp_path / "two" / "server", tmp_path / "two" / "sites" / "boston"
    own = Credential((server / "tls.crt").read_bytes(), (server / "tls.key").read_bytes())
    flower = answering(heart, tmp_path, own)
    change(folder, ":9092", f":{flower.port}")
    assert [line.partition(":")[0] for line in way_out(folder)] == ["ok    connection", "ok    TLS"]
    flower.close()


def test_through_a_proxy_all_is_well_and_a_wrong_password_is_told_without_it(
    site: Path, heart: "Heart", proxy: "HttpProxy"
) -> None:
    change(site, '#proxy = "http://user:password@proxy:3128"', f'proxy = "{proxy.url()}"')
    assert mends(way_out(site)) == []
    change(site, proxy.url(), proxy.url("swordfish"))
    (line,) = lines = way_out(site)
    assert line.startswith(f"mend  proxy: proxy 127.0.0.1:{proxy.port} wants another user or password (407); correct")
    assert "swordfish" not in "".join(lines)


class Middlebox:
    """Opens each connection on its way, and shows a certificate that it has made for the name that was asked for."""

    def __init__(self, folder: Path, authority: Credential, certificate: Credential, port: int) -> None:
        (folder / "shown.pem").write_bytes(certificate.certificate + certificate.key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "shown.pem")
        self.port = port

    def reach(self, near: socket.socket) -> socket.socket | None:
        self.context.wrap_socket(near.dup(), server_side=True).close()
        return None


@pytest.fixture
def middlebox(heart: "Heart", tmp_path: Path) -> Iterator["Relay"]:
    authority = company_authority("Clinic Web Filter")
    shown = identity.make_server(authority, [CONTROL], datetime.now(UTC))
    box = heart.relay(Middlebox(tmp_path, authority, shown, heart.port).reach)
    yield box
    box.close()


def company_authority(name: str) -> Credential:
    """An authority as a firewall has one, for whatever name it opens."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + timedelta(days=9))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Credential(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), private)


def test_tls_inspection_is_named_and_so_is_who_does_it(site: Path, heart: "Heart", middlebox: "Relay") -> None:
    change(site, f":{heart.port}", f":{middlebox.port}")
    *_, line = way_out(site)
    assert line.startswith(
        f"mend  TLS: TLS inspection: what answers at 127.0.0.1:{middlebox.port} shows a certificate that was signed by "
        '"Clinic Web Filter", not by this consortium\'s authority.'
    )
    assert f"have 127.0.0.1:{middlebox.port} exempted" in line


def answering(heart: "Heart", folder: Path, shown: Credential) -> "Relay":
    """A TLS server with a certificate, which says nothing."""
    folder.mkdir(exist_ok=True)
    return heart.relay(Middlebox(folder, shown, shown, heart.port).reach)


def authority_of(heart: "Heart") -> Credential:
    own = heart.folder / "consortium"
    return Credential((own / "ca.crt").read_bytes(), (own / "ca.key").read_bytes())


def test_another_consortium_s_server_is_told(site: Path, heart: "Heart", tmp_path: Path) -> None:
    now = datetime.now(UTC)
    other = answering(heart, tmp_path, identity.make_server(identity.make_authority("lung", now), [], now))
    change(site, f":{heart.port}", f":{other.port}")
    *_, line = way_out(site)
    assert 'is another consortium\'s server ("Hansa certificate authority", "lung"); correct server' in line
    other.close()


def test_a_server_whose_certificate_is_for_another_name_or_time_is_told(
    site: Path, heart: "Heart", tmp_path: Path
) -> None:
    authority, now = authority_of(heart), datetime.now(UTC)
    year = identity.LEAF_VALID
    cases = {
        "is not good for control.hansa": identity.make_site(authority, "x", now),
        "the server's certificate ended on": identity.make_server(authority, [], now - year - timedelta(days=2)),
        "the server's certificate begins on": identity.make_server(authority, [], now + timedelta(days=2)),
    }
    address = f":{heart.port}"
    for text, shown in cases.items():
        one = answering(heart, tmp_path, shown)
        change(site, address, address := f":{one.port}")
        *_, line = way_out(site)
        one.close()
        if "control" in text:
            assert line.startswith("mend  TLS: the server's certificate is not good for control.hansa")
        else:
            assert line.startswith(f"mend  TLS: {text}")
            assert "set the clock" in line


def test_what_is_no_tls_is_told(site: Path, heart: "Heart") -> None:
    def talk(near: socket.socket) -> None:
        near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    web = heart.relay(talk)
    change(site, f":{heart.port}", f":{web.port}")
    *_, line = way_out(site)
    assert line.startswith(f"mend  TLS: 127.0.0.1:{web.port}: no TLS with what answers there")
    web.close()


def test_who_was_taken_out_is_told(heart: "Heart", tmp_path: Path) -> None:
    folder = heart.joined("chur", tmp_path / "chur")
    assert mends(way_out(folder)) == []
    heart.revoke("chur")
    line, *_ = mends(way_out(folder))
    assert line.startswith("the server: ")
    assert "revoked" in line
    assert "was this site taken out? Ask the consortium" in line


@pytest.mark.parametrize(("hours", "how"), [(2, "ahead of"), (-2, "behind")])
def test_a_clock_that_is_off_is_told(
    site: Path, heart: "Heart", monkeypatch: pytest.MonkeyPatch, hours: int, how: str
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Clock":
            return cls.fromtimestamp(datetime.now(UTC).timestamp() + 3600 * hours, UTC)

    monkeypatch.setattr(wayout, "datetime", Clock)
    (line,) = mends(way_out(site))
    assert line.startswith("clock: this machine's is 7")
    assert f" s {how} the server's; set it" in line


def test_a_certificate_that_ends_soon_is_told(heart: "Heart", site: Path) -> None:
    """On the thirtieth day before its end, and not before."""
    ends = identity.ends((site / "tls.crt").read_bytes())
    assert mends([str(one) for one in look_at_keys(site, ends - timedelta(days=31))]) == []
    (line,) = mends([str(one) for one in look_at_keys(site, ends - timedelta(days=30))])
    assert line == f"tls.crt: good until {ends:%Y-%m-%d}; hansa site renew {site}"


def test_a_key_that_others_may_read_is_told(site: Path) -> None:
    (site / "sign.key").chmod(0o644)
    (line,) = mends([str(one) for one in look_at_keys(site, datetime.now(UTC))])
    assert line.startswith(f"{site / 'sign.key'}: others may read this key; chmod 600")


SECRET = "Nightingale"


@pytest.mark.parametrize(
    "rows",
    [
        ROWS + f"{SECRET},1,1\n",
        ROWS + f"63,1,{SECRET}\n",
        ROWS.replace("disease", SECRET),
        ROWS + f"1,1,1,{SECRET},5\n",
        f"{SECRET},{SECRET},disease\n1,2,0\n",
        f'age,sex,disease\n"{SECRET}',
        "",
    ],
)
def test_what_stands_in_the_rows_is_in_no_line(site: Path, rows: str) -> None:
    (site / "rows.csv").write_text(rows)
    lines = [str(one) for one in checkup.look_at_data(site)]
    assert mends(lines) == [line.removeprefix("mend  ") for line in lines] != []
    assert SECRET not in "".join(lines)


def test_a_device_that_is_not_there_is_told(site: Path) -> None:
    (line,) = [str(one) for one in checkup.look_at_device("cuda:99")]
    assert line.startswith("mend  [training] device: there is no cuda:99 on this machine")
    (line,) = [str(one) for one in checkup.look_at_device("cpu")]
    assert line.startswith("ok    [training] device: cpu is cpu")


def test_a_device_that_takes_the_process_down_is_told(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a broken driver does: the process ends by a signal, and the examination goes on."""
    program = site / "python"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o700)
    monkeypatch.setattr("clients.doctor.sys.executable", str(program))
    said: list[str] = []
    assert not examine(site, said.append)
    assert [line.partition("(")[2].partition(")")[0] for line in mends(said)] == ["signal SIGSEGV"] * 2


def test_an_installed_version_that_does_not_fit_is_told(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["flwr<1.43,>=1.42", "torch>=99", "nowhere-9>=1"])
    lines = mends([str(one) for one in look_at_versions()])
    assert lines[0].startswith("versions: torch ")
    assert lines[0].endswith(' is not >=99; pip install "torch>=99"')
    assert lines[1] == 'versions: nowhere-9 is not installed; pip install "nowhere-9>=1"'
    assert len(lines) == 2


def test_a_site_that_allows_no_app_is_told(site: Path) -> None:
    assert look_at_apps(load_site_file(site / "site.toml")).good
    change(site, f'"{DIGEST}"', "")
    assert str(look_at_apps(load_site_file(site / "site.toml"))).startswith("mend  [apps]: none is allowed")


def test_importing_the_doctor_imports_no_torch() -> None:
    start = "import sys; import clients.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", start], check=False).returncode == 0
