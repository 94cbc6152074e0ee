"""Requests for certificates (PKCS #10), of which nothing but the key counts: the rest is a stranger's word."""

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hansa.identity import Credential, p256, public_p256, sign_leaf, spki
from hansa.wire.rules import site_uri


def make_csr(key: bytes, name: str) -> bytes:
    """A request for a certificate of a TLS key's, PEM.

    Raises:
        ValueError: it is no P-256 key.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return x509.CertificateSigningRequestBuilder(subject).sign(p256(key), hashes.SHA256()).public_bytes(Encoding.PEM)


def requested_key(csr: bytes) -> str:
    """The public key for which a certificate is requested (SPKI, PEM), by whoever has the private one.

    Raises:
        ValueError: it is no request, is not signed by its own key, or that is no P-256 key.
    """
    return spki(_requested(csr))


def sign_site(authority: Credential, csr: bytes, site: str, now: datetime) -> bytes:
    """A site's TLS certificate, PEM, for the key of a request and a name that is not taken from it.

    Raises:
        ValueError: see `requested_key`.
    """
    names = [x509.UniformResourceIdentifier(site_uri(site))]
    made = sign_leaf(authority, _requested(csr), site, names, ExtendedKeyUsageOID.CLIENT_AUTH, now)
    return made.public_bytes(Encoding.PEM)


def _requested(csr: bytes) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(csr)
        key = public_p256(request.public_key())
        if not request.is_signature_valid:
            raise ValueError("not signed by its own key")
    except (UnsupportedAlgorithm, InvalidSignature) as error:
        raise ValueError("of no form that is known") from error
    return key
