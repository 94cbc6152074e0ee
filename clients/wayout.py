"""The way from a site to its server, looked at step by step: the first that does not hold is told, with its mend."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from clients.dial import way
from clients.finding import Finding, mend, ok
from clients.sitefile import SiteFile
from hansa.address import as_ip, split
from hansa.controlclient import ControlClient, in_folder
from hansa.dial import Way, in_words
from hansa.errors import RunFailed, UserError
from hansa.identity import AUTHORITY
from hansa.proxy import Refused
from hansa.routes import CONTROL
from hansa.startup import CA, read, read_roster

PATIENCE = 15.0  # seconds
SKEW = 60.0  # seconds by which clocks may differ
NOT_YET, EXPIRED = 9, 10  # of OpenSSL's X509_V_ERR_CERT_*


def look_at_way(file: SiteFile, folder: Path) -> Iterator[Finding]:
    """The way that a site.toml names, to its end."""
    try:
        road = way(file)
    except UserError as error:
        yield mend(str(error))
        return
    steps = [_name(road), _connection(road), _tls(road, folder, file.network.gate)]
    for step in steps:
        for finding in step:
            yield finding
            if not finding.good:
                return
    if file.network.gate:
        yield from _welcome(in_folder(road, folder), folder)


def _name(road: Way) -> Iterator[Finding]:
    """Behind a proxy, only its own name must be known here."""
    host, key = (road.proxy.host, "proxy") if road.proxy else (split(road.server)[0], "server")
    if as_ip(host) is not None:
        return
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        yield mend(f"name: {host} is not known here; correct {key} in site.toml, or this machine's name servers")
        return
    yield ok(f"name: {host} is {', '.join(found)}")


def _connection(road: Way) -> Iterator[Finding]:
    through = f" through the proxy {road.proxy}" if road.proxy else ""
    try:
        asyncio.run(road.dial()).close()
    except Refused as refused:
        yield mend(
            f"proxy: {refused}; correct [network] proxy in site.toml, or have the proxy let {road.server} through"
        )
    except OSError as error:
        ask = "is the proxy's address right?" if road.proxy else "does the firewall let this machine out to it?"
        yield mend(f"connection: {road.server}{through}: {in_words(error)}; is the server up, and {ask}")
    else:
        yield ok(f"connection: {road.server} can be reached{through}")


def _tls(road: Way, folder: Path, gate: bool) -> Iterator[Finding]:
    """Who answers: the consortium's server, or somebody between."""
    name = CONTROL if gate else split(road.server)[0]
    try:
        authority = x509.load_pem_x509_certificate(read(folder, CA))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folder / CA)
    except (UserError, ValueError, OSError):
        return  # what is wrong with the file was told
    try:
        _shake_hands(road, context, name)
    except ssl.SSLCertVerificationError as error:
        yield mend(f"TLS: {_stranger(road, name, authority, error)}")
    except OSError as error:
        yield mend(f"TLS: {road.server}: {in_words(error)}; is it the port that the consortium has named?")
    else:
        yield ok(f"TLS: {road.server} is the consortium's server; nobody opens the connection on the way")


def _stranger(road: Way, name: str, authority: x509.Certificate, error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with the certificate that answers, and the mend."""
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    try:
        shown = x509.load_der_x509_certificate(_shake_hands(road, blind, name))
    except (OSError, ValueError):
        return f"{road.server}: {in_words(error)}"
    try:
        shown.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return _not_ours(road, shown)
    now = datetime.now(UTC)
    if error.verify_code == NOT_YET:
        begins = f"{shown.not_valid_before_utc:%Y-%m-%d %H:%M}"
        return f"the server's certificate begins on {begins} UTC, and here it is {now:%Y-%m-%d %H:%M}; set the clock"
    if error.verify_code == EXPIRED:
        ended = f"{shown.not_valid_after_utc:%Y-%m-%d}"
        return f"the server's certificate ended on {ended}, and here it is {now:%Y-%m-%d}; set the clock, or tell them"
    return f"the server's certificate is not good for {name} ({error.verify_message}); tell the consortium"


def _not_ours(road: Way, shown: x509.Certificate) -> str:
    issuer = _issuer(shown)
    if AUTHORITY in issuer:
        return f"{road.server} is another consortium's server ({issuer}); correct server in site.toml"
    return (
        f"TLS inspection: what answers at {road.server} shows a certificate that was signed by {issuer}, not by this "
        "consortium's authority. Somebody on the way opens the connection (a firewall, a virus scanner): have "
        f"{road.server} exempted from that. Or it is another server: then correct server in site.toml"
    )


def _issuer(shown: x509.Certificate) -> str:
    """Who signed a certificate, as it says; it is a stranger's text."""
    said = [one.value for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
            for one in shown.issuer.get_attributes_for_oid(oid)]  # fmt: skip
    plain = ["".join(c for c in str(one) if c.isprintable())[:60] for one in said]
    return ", ".join(f'"{one}"' for one in plain) or "nobody that it names"


def _shake_hands(road: Way, context: ssl.SSLContext, name: str) -> bytes:
    """The certificate that answers, DER.

    Raises:
        OSError: there is no connection; ssl.SSLCertVerificationError: it is not as the context wants it.
    """
    end = asyncio.run(road.dial())
    try:
        end.settimeout(PATIENCE)
        with context.wrap_socket(end, server_hostname=name) as tls:
            return tls.getpeercert(binary_form=True) or b""
    finally:
        end.close()


def _welcome(control: ControlClient, folder: Path) -> Iterator[Finding]:
    """Whether the server takes this site's certificate, and agrees on the time."""
    try:
        edition = read_roster(folder).edition
        newest = int(control.ask("roster", {"edition": edition}, lambda line: None)["edition"])
    except (UserError, RunFailed) as error:
        yield mend(f"the server: {error}; was this site taken out? Ask the consortium")
    else:
        later = f"; it has edition {newest} of the roster, hansa site up fetches it" if newest > edition else ""
        yield ok(f"the server lets this site in{later}")
    try:
        said = control.date("roster", {"edition": 0})
        ahead = (datetime.now(UTC) - parsedate_to_datetime(said)).total_seconds()
    except (UserError, RunFailed, ValueError, TypeError):
        return
    if abs(ahead) > SKEW:
        way_ = "ahead of" if ahead > 0 else "behind"
        yield mend(f"clock: this machine's is {abs(ahead):.0f} s {way_} the server's; set it, best by NTP, on both")
    else:
        yield ok(f"clock: within {SKEW:.0f} s of the server's")
