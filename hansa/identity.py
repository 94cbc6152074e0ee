"""Certificates and keys of a consortium: who is who on the wire.

TLS keys are P-256, since gRPC refuses Ed25519 there; what a site signs (its ledger, its answers) it signs with an
Ed25519 key of its own. A site's name stands in its certificate as a URI (`hansa.wire.rules.site_uri`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hansa import routes
from hansa.address import as_ip
from hansa.roles import Role, uri
from hansa.wire.rules import site_uri

TOLERANCE = timedelta(minutes=5)  # a certificate is valid this long before it was made: clocks differ
AUTHORITY = "Hansa certificate authority"  # the common name of each consortium's
CA_VALID = timedelta(days=3652)
LEAF_VALID = timedelta(days=365)


@dataclass(frozen=True)
class Credential:
    """A certificate and its P-256 key."""

    certificate: bytes  # PEM
    key: bytes = field(repr=False)  # PEM, PKCS #8, not encrypted


@dataclass(frozen=True)
class KeyPair:
    """A private key, and its public half as the roster has it."""

    private: bytes = field(repr=False)
    public: str


def make_authority(consortium: str, now: datetime) -> Credential:
    """The consortium's certificate authority: it signs leaves only, for ten years."""
    key, usage = ec.generate_private_key(ec.SECP256R1()), _usage(key_cert_sign=True, crl_sign=True)
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, consortium)]
    subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)])
    builder = _builder(subject, subject, key.public_key(), now, now + CA_VALID)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _credential(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def make_server(authority: Credential, hosts: Sequence[str], now: datetime) -> Credential:
    """The server's TLS certificate, good for these names and IP addresses and those of its gate, and for no client."""
    ips = {host: as_ip(host) for host in (*hosts, *routes.NAMES)}
    names: list[x509.GeneralName] = [x509.IPAddress(ip) if ip else x509.DNSName(host) for host, ip in ips.items()]
    return _leaf(authority, "server", names, ExtendedKeyUsageOID.SERVER_AUTH, now)


def make_site(authority: Credential, site: str, now: datetime) -> Credential:
    """A site's TLS certificate, good for a client only: no site can pass itself off as the server."""
    names = [x509.UniformResourceIdentifier(site_uri(site))]
    return _leaf(authority, site, names, ExtendedKeyUsageOID.CLIENT_AUTH, now)


def make_person(authority: Credential, role: Role, name: str, now: datetime) -> Credential:
    """A person's TLS certificate, by which they ask the server; good for a client only."""
    names = [x509.UniformResourceIdentifier(uri(role, name))]
    return _leaf(authority, name, names, ExtendedKeyUsageOID.CLIENT_AUTH, now)


def make_tls_key() -> bytes:
    """A P-256 key for TLS, PEM."""
    return _private(ec.generate_private_key(ec.SECP256R1()))


def tls_public(key: bytes) -> str:
    """The public half of a TLS key (SPKI, PEM).

    Raises:
        ValueError: it is no P-256 key.
    """
    return spki(p256(key).public_key())


def certified_key(certificate: bytes) -> str:
    """The public key of a PEM certificate of ours (SPKI, PEM).

    Raises:
        ValueError: it is none.
    """
    return spki(public_p256(_loaded(certificate).public_key()))


def certifies(certificate: bytes, authority: bytes, site: str) -> bool:
    """Whether an authority (PEM) has signed a certificate that says of somebody to be this site, and nothing else."""
    try:
        found = _loaded(certificate)
        found.verify_directly_issued_by(_loaded(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return uris(certificate) == (site_uri(site),)


def make_signing_key() -> KeyPair:
    """An Ed25519 key, PEM; the public half is its 32 bytes in hex."""
    key = Ed25519PrivateKey.generate()
    return KeyPair(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), signing_public(key))


def make_node_key() -> KeyPair:
    """A P-256 key by which Flower knows a site's node: the private half as OpenSSH has it, the public one SPKI, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return KeyPair(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), spki(key.public_key()))


def signing_public(key: Ed25519PrivateKey) -> str:
    """The public half of a signing key, 32 bytes in hex."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def node_public(private: bytes) -> str:
    """The public half of a node key.

    Raises:
        ValueError: it is no such key.
    """
    return spki(load_node_key(private).public_key())


def load_node_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    """A node key from its OpenSSH form.

    Raises:
        ValueError: it is no such key.
    """
    return _private_p256(load_ssh_private_key(private, password=None))


def load_signing_key(private: bytes) -> Ed25519PrivateKey:
    """A signing key from its PEM.

    Raises:
        ValueError: it is no such key.
    """
    key = load_pem_private_key(private, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("not an Ed25519 key")
    return key


def fingerprint(certificate: bytes) -> str:
    """`sha256:` and the digest of a PEM certificate's DER, in hex."""
    return fingerprint_of_der(_loaded(certificate).public_bytes(Encoding.DER))


def fingerprint_of_der(certificate: bytes) -> str:
    """`sha256:` and the digest of a certificate in DER, in hex."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def is_authority(certificate: bytes) -> bool:
    """Whether it is a PEM certificate that may sign others."""
    try:
        found = _loaded(certificate).extensions
        return found.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        return False


def ends(certificate: bytes) -> datetime:
    """Until when a PEM certificate is good."""
    return _loaded(certificate).not_valid_after_utc


def uris(certificate: bytes) -> tuple[str, ...]:
    """The URIs that a PEM certificate names as its subject's."""
    return _uris(_loaded(certificate))


def hosts(certificate: bytes) -> list[str]:
    """The names and IP addresses of a server that a PEM certificate is good for, those of the gate's routes aside."""
    names = _loaded(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    ips = [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)]
    return [name for name in names.value.get_values_for_type(x509.DNSName) if name not in routes.NAMES] + ips


def uris_of_der(certificate: bytes) -> tuple[str, ...]:
    """The URIs that a certificate in DER names as its subject's."""
    return _uris(x509.load_der_x509_certificate(certificate))


def flaw(credential: Credential, authority: bytes, now: datetime) -> str | None:
    """What is wrong with a certificate: not signed by this authority (PEM), not of its key, not now. None: nothing.

    Raises:
        ValueError: one of the three is no certificate or key.
    """
    certificate = _loaded(credential.certificate)
    try:
        certificate.verify_directly_issued_by(_loaded(authority))
    except (InvalidSignature, ValueError, TypeError):
        return "was not signed by the authority beside it"
    key = load_pem_private_key(credential.key, password=None)
    if key.public_key() != certificate.public_key():
        return "does not belong to the key beside it"
    if now > certificate.not_valid_after_utc:
        return f"ended on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"begins on {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; set this machine's clock"
    return None


def _loaded(certificate: bytes) -> x509.Certificate:
    """A certificate from its PEM.

    Raises:
        ValueError: it is none.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate)
    except x509.InvalidVersion as error:  # which is no ValueError
        raise ValueError(str(error)) from error
    if found.serial_number <= 0:
        raise ValueError("a serial number that is none (RFC 5280, 4.1.2.2)")
    return found


def _uris(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.value.get_values_for_type(x509.UniformResourceIdentifier))


def sign_leaf(
    authority: Credential,
    key: ec.EllipticCurvePublicKey,
    name: str,
    names: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    now: datetime,
) -> x509.Certificate:
    """A leaf for somebody's key, signed by an authority.

    Raises:
        ValueError: the authority's key is none.
    """
    issuer = _loaded(authority.certificate)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    ]
    builder = _builder(subject, issuer.subject, key, now, min(now + LEAF_VALID, issuer.not_valid_after_utc))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(p256(authority.key), hashes.SHA256())


def p256(key: bytes) -> ec.EllipticCurvePrivateKey:
    """A P-256 key from its PEM.

    Raises:
        ValueError: it is none.
    """
    return _private_p256(load_pem_private_key(key, password=None))


def public_p256(key: object) -> ec.EllipticCurvePublicKey:
    """A public key, if it is a P-256 one.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")
    return key


def spki(key: ec.EllipticCurvePublicKey) -> str:
    """A public key: SPKI, PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _private_p256(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")
    return key


def _leaf(
    authority: Credential,
    name: str,
    names: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    now: datetime,
) -> Credential:
    key = ec.generate_private_key(ec.SECP256R1())
    return _credential(sign_leaf(authority, key.public_key(), name, names, purpose, now), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - TOLERANCE, end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(**granted: bool) -> x509.KeyUsage:
    kinds = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    none = dict.fromkeys([*kinds, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**{**none, **granted})


def _credential(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Credential:
    return Credential(certificate.public_bytes(Encoding.PEM), _private(key))


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
