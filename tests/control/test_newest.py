"""What a site takes from a server that lies: nothing that authority and roster key have not signed, nothing older."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from clients.newest import Granted, granted, refresh_roster
from hansa.errors import UserError
from hansa.identity import Credential, fingerprint, make_authority, make_signing_key, make_site
from hansa.roster import Roster, sign
from hansa.startup import read_roster
from server.asking import Ask

if TYPE_CHECKING:
    from tests.control.conftest import Heart

NOW = datetime.now(UTC)


class Lying:
    """A server that answers what a test wants, and the site boston that asks it."""

    def __init__(self, start: Callable[..., "Heart"]) -> None:
        def lies(ask: Ask) -> dict[str, Any]:
            ask.permit()
            return self.answer

        self.answer: dict[str, Any] = {}
        self.heart = start(roster=lies, collect=lies)
        self.site = self.heart.home("boston")
        own = self.heart.folder / "consortium"
        self.roster_key = (own / "roster.key").read_bytes()
        self.authority = Credential((own / "ca.crt").read_bytes(), (own / "ca.key").read_bytes())
        self.said: list[str] = []

    def roster(self, edition: int, certificate: bytes | None = None, **change: Any) -> Roster:
        """A roster of the consortium's, with another certificate of boston's."""
        now = read_roster(self.site)
        tls = {"tls": fingerprint(certificate)} if certificate else {}
        sites = tuple(member.model_copy(update=tls) for member in now.sites)
        return now.model_copy(update={"edition": edition, "sites": sites, **change})

    def sends(self, roster: Roster, key: bytes | None = None, certificate: bytes = b"") -> None:
        signature = sign(roster.to_bytes(), key or self.roster_key).decode().strip()
        self.answer |= {"edition": roster.edition, "state": "approved", "certificate": certificate.decode()}
        self.answer |= {"roster": roster.to_bytes().decode(), "signature": signature}

    def refresh(self) -> Roster:
        """The roster that the site then has."""
        refresh_roster(self.site, "boston", self.heart.control("boston"), self.said.append)
        return read_roster(self.site)

    def collect(self, key: bytes) -> Granted | None:
        return granted(self.site, "boston", key, self.heart.control("boston"))


@pytest.fixture
def lying(here: Callable[..., "Heart"]) -> Lying:
    return Lying(here)


def test_a_newer_roster_is_taken_up_and_an_older_one_is_not(lying: Lying) -> None:
    lying.sends(lying.roster(5))
    assert lying.refresh().edition == 5
    lying.sends(lying.roster(4))
    assert lying.refresh().edition == 5
    assert len(lying.said) == 1


def test_a_roster_is_not_taken_up_that_another_key_has_signed_or_that_names_another_authority(lying: Lying) -> None:
    before = read_roster(lying.site)
    lying.sends(lying.roster(5), make_signing_key().private)
    with pytest.raises(UserError, match="that the consortium's roster key did not sign"):
        lying.refresh()
    lying.sends(lying.roster(5, ca=fingerprint(make_authority("heart", NOW).certificate)))
    with pytest.raises(UserError, match="of another authority than"):
        lying.refresh()
    assert read_roster(lying.site) == before


def test_a_roster_that_the_site_s_files_do_not_fit_is_not_taken_up(lying: Lying) -> None:
    before = read_roster(lying.site)
    for roster in (lying.roster(5, make_site(lying.authority, "boston", NOW).certificate), lying.roster(6, sites=())):
        lying.sends(roster)
        assert lying.refresh() == before
        assert lying.said.pop().startswith(f"edition {roster.edition} of the roster has another certificate for boston")


def test_a_certificate_is_taken_that_fits_its_key_and_the_newest_roster(lying: Lying) -> None:
    tls = make_site(lying.authority, "boston", NOW)
    lying.sends(lying.roster(5, tls.certificate), certificate=tls.certificate)
    found = lying.collect(tls.key)
    assert found is not None
    assert found.certificate == tls.certificate
    assert lying.collect(make_site(lying.authority, "boston", NOW).key) is None  # it has asked for another key


@pytest.mark.parametrize("name", ["lyon", "boston"])
def test_a_certificate_for_another_site_or_by_another_authority_is_not_taken(lying: Lying, name: str) -> None:
    tls = make_site(lying.authority if name == "lyon" else make_authority("heart", NOW), name, NOW)
    lying.sends(lying.roster(5, tls.certificate), certificate=tls.certificate)
    with pytest.raises(UserError, match="did not sign for this site"):
        lying.collect(tls.key)


def test_a_certificate_is_not_taken_with_an_older_roster_or_one_that_does_not_have_it(lying: Lying) -> None:
    lying.sends(lying.roster(5))
    lying.refresh()
    tls = make_site(lying.authority, "boston", NOW)
    lying.sends(lying.roster(4, tls.certificate), certificate=tls.certificate)
    with pytest.raises(UserError, match=r"an older roster\.json than this site has"):
        lying.collect(tls.key)
    lying.sends(lying.roster(6), certificate=tls.certificate)
    with pytest.raises(UserError, match=r"that its roster\.json does not have"):
        lying.collect(tls.key)
