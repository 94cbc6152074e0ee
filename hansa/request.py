"""What a site says of itself when it asks for a certificate: its public keys, and that it has the private ones."""

import hashlib
from collections.abc import Mapping
from typing import Annotated

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import Field, ValidationError

from hansa.csr import make_csr, requested_key
from hansa.identity import load_node_key, load_signing_key, node_public, public_p256, signing_public, spki
from hansa.kit import Signature, Signed
from hansa.roster import MOST_NODES, Fingerprint, Member, Nodes, PublicKey
from hansa.signing import canonical, signed_by
from hansa.startup import SIGN_KEY, TLS_KEY
from hansa.tables import Name, Table

CONTEXT, CLAIM_CONTEXT = b"hansa/request/1\n", b"hansa/claim/1\n"


class Unsound(Exception):
    """A request is not what it says; `code` says why in a word, the text in a line fit to print."""

    def __init__(self, code: str, line: str) -> None:
        super().__init__(line)
        self.code = code


NodeProof = Annotated[str, Field(pattern=r"^[0-9a-f]{16,160}$")]  # ECDSA, DER in hex


class Request(Table):
    """A site asks to join (with an invitation), or for its next certificate (without)."""

    site: Name
    csr: Annotated[str, Field(max_length=4096)]  # PEM: of it, only the public key counts
    sign: PublicKey
    nodes: Nodes
    invited: Signed | None = None
    present: Fingerprint | None = None  # of the certificate that the next one is to follow: so no request serves twice
    proof: Signature  # of all above, by the signing key
    node_proofs: Annotated[tuple[NodeProof, ...], Field(max_length=MOST_NODES)]  # the same, by each node key

    @property
    def keys(self) -> str:
        """A digest of the site's name and keys, in hex."""
        return hashlib.sha256(
            canonical([self.site, requested_key(self.csr.encode()), self.sign, self.nodes])
        ).hexdigest()

    @property
    def fingerprint(self) -> str:
        """80 bits of it, to be read out and compared by people."""
        return "-".join(self.keys[i : i + 4] for i in range(0, 20, 4))

    def follows(self, member: Member | None) -> bool:
        """Whether it is a member's, by the keys and the certificate that the roster has."""
        own = (self.site, self.sign, self.nodes, self.present)
        return member is not None and own == (member.name, member.sign, member.nodes, member.tls)

    def check(self) -> None:
        """Checks all that can be told without knowing the consortium.

        Raises:
            Unsound: something is wrong.
        """
        try:
            requested_key(self.csr.encode())
        except ValueError:
            raise Unsound("csr", "the request for a certificate is none, or not signed by its own P-256 key") from None
        said = CONTEXT + canonical(self.model_dump(mode="json", exclude={"proof", "node_proofs"}))
        if not signed_by(self.sign, self.proof, said) or not self._nodes_proven(said):
            raise Unsound("proof", "the request is not signed by the keys that it names")
        if (self.invited is None) == (self.present is None):
            raise Unsound("form", "a request is either by an invitation, or follows a certificate")
        if self.invited is not None and self.invited.invitation.site != self.site:
            raise Unsound("another_site", f"the invitation is for {self.invited.invitation.site}, not for {self.site}")
        if self.invited is not None and self.invited.invitation.nodes != len(self.nodes):
            raise Unsound(
                "nodes", f"the invitation is for {self.invited.invitation.nodes} nodes, not for {len(self.nodes)}"
            )

    def _nodes_proven(self, said: bytes) -> bool:
        proven = zip(self.nodes, self.node_proofs, strict=False)
        enough = len(self.node_proofs) == len(self.nodes) == len(set(self.nodes))
        return enough and all(_node_proven(node, proof, said) for node, proof in proven)


class Claim(Table):
    """A site asks what became of its request. Who repeats a claim learns what everybody in the consortium may know."""

    site: Name
    proof: Signature

    def is_by(self, key: str) -> bool:
        """Whether a signing key (32 bytes in hex) has signed it."""
        return signed_by(key, self.proof, CLAIM_CONTEXT + canonical(self.site))


def make_claim(site: str, sign_key: bytes) -> Claim:
    """A site's claim, by its signing key (PEM)."""
    return Claim(site=site, proof=load_signing_key(sign_key).sign(CLAIM_CONTEXT + canonical(site)).hex())


def read_request(body: object) -> Request:
    """A request from what came over the network, checked as far as it can be without knowing the consortium.

    Raises:
        Unsound: it is none, or not sound.
    """
    try:
        request = Request.model_validate(body)
    except ValidationError:
        raise Unsound("form", "no request that this version of hansa knows; update hansa at both ends") from None
    request.check()
    return request


def make_request(
    site: str, keys: Mapping[str, bytes], invited: Signed | None = None, present: str | None = None
) -> Request:
    """A site's request.

    Args:
        site: its name.
        keys: the contents of tls.key and sign.key, and of the node keys in their order.
        invited: how it may join; None: it is a member, and wants its next certificate.
        present: the fingerprint of a member's present certificate.

    Raises:
        ValueError: one of the keys is none.
    """
    sign, own = load_signing_key(keys[SIGN_KEY]), [key for name, key in keys.items() if name not in (TLS_KEY, SIGN_KEY)]
    facts = {
        "site": site,
        "csr": make_csr(keys[TLS_KEY], site).decode(),
        "sign": signing_public(sign),
        "nodes": [node_public(key) for key in own],
        "invited": None if invited is None else invited.model_dump(mode="json"),
        "present": present,
    }
    said = CONTEXT + canonical(facts)
    proofs = {"proof": sign.sign(said).hex(), "node_proofs": [_node_proof(key, said) for key in own]}
    return Request.model_validate(facts | proofs)


def _node_proof(private: bytes, data: bytes) -> str:
    return load_node_key(private).sign(data, ec.ECDSA(hashes.SHA256())).hex()


def _node_proven(public: str, signature: str, data: bytes) -> bool:
    """Whether a signature (ECDSA, DER in hex) is by a node key: SPKI, PEM, as `node_public` writes it."""
    try:
        key = public_p256(load_pem_public_key(public.encode()))
        if spki(key) != public:
            return False
        key.verify(bytes.fromhex(signature), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True
