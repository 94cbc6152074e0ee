"""The server's half of secure aggregation: it gathers, closes each step, and takes the masks off the sum.

Each step has a call for what comes from a site, and one that closes it and says what goes out. The first raises
`Refused` with the site, which is then out of the attempt from this step on; the second raises it without one if too few
are left. It draws nothing at random: the same messages give the same state.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import numpy as np

from hansa.roster import Roster
from privacy.secagg import keys, shamir
from privacy.secagg.agreement import UNSIGNED, check_enough, check_held, check_keys
from privacy.secagg.coding import Malformed
from privacy.secagg.errors import Refused, Step
from privacy.secagg.keystream import CHUNK, Keystream, Mask
from privacy.secagg.messages import Advert, Consent, Delivery, Header, Message, Opening, Shares, Survivors, session
from privacy.secagg.packing import is_packed, packed, unpack, word
from privacy.secagg.terms import Terms
from privacy.secagg.total import Total

M = TypeVar("M", bound=Message)
STEP = CHUNK // 4  # numbers of an upload that are unpacked at once
BATCH = 1024  # masks taken off in one pass: a hundred lost sites of a thousand leave 90,000


class Coordinator:
    """One attempt at one round.

    Args:
        terms: of the attempt; the sites get their bytes.
        roster: the consortium's.
        stream: how masks are made.
    """

    def __init__(self, terms: Terms, roster: Roster, stream: Keystream) -> None:
        self.terms, self.roster, self._stream = terms, roster, stream
        self._numbers = {site: number for number, site in enumerate(terms.sites)}
        self._open: Step | None = "advertise"
        self._adverts: dict[int, Advert] = {}
        self._taken: set[bytes] = set()  # their keys
        self._shares: dict[int, Mapping[int, bytes]] = {}  # U2 are its keys
        self._added: set[int] = set()  # U3
        self._consents: dict[int, bytes] = {}
        self._seeds: dict[int, Mapping[int, bytes]] = {}  # shares, by who gave them and whose secret it is
        self._keys: dict[int, Mapping[int, bytes]] = {}
        self._session = self._transcript = b""
        self._words = np.zeros(terms.size, word(terms.bits))
        self._scalars = np.zeros(max(place.stop for place in terms.scalar_places.values()), "<u8")

    def advertise(self, site: str, data: bytes) -> None:
        """A site's keys."""
        number, message = self._read("advertise", site, Advert, data, self._adverts)
        if not self._is_signed(site, message.signature, message.signed(self.terms.digest)):
            raise Refused("advertise", site, UNSIGNED)
        check_keys(message, self._taken, self.terms, "advertise")
        self._adverts[number] = message
        self._taken |= {message.channel, message.mask}

    def adverts(self) -> list[bytes]:
        """Closes the step. What each of the sites that sent keys gets."""
        self._close("advertise", self._adverts, "share")
        self._adverts = dict(sorted(self._adverts.items()))
        check_held("advertise", self._adverts.values(), self.terms)
        self._session = session(self.terms.digest, self._adverts.values())
        return [advert.to_bytes() for advert in self._adverts.values()]

    def share(self, site: str, data: bytes) -> None:
        """A site's sealed shares."""
        number, message = self._read("share", site, Shares, data, self._shares, self._adverts)
        sealed = dict(message.sealed)
        if message.session != self._session or sealed.keys() != self._adverts.keys() - {number}:
            raise Refused("share", site, "shares of another session, or not one for each other site")
        self._shares[number] = sealed

    def deliveries(self) -> dict[str, bytes]:
        """Closes the step. What each of the sites that shared gets."""
        self._close("share", self._shares, "mask")
        return {self.terms.sites[number]: self._delivery(number) for number in sorted(self._shares)}

    def add(self, site: str, upload: bytes | memoryview) -> None:
        """A site's whole upload (it may be mapped from a file): added if it is of the right form, else not at all."""
        head, body = memoryview(upload)[: Header.SIZE], memoryview(upload)[Header.SIZE :]
        number, message = self._read("mask", site, Header, head, self._added, self._shares)
        scalars, bulk = body[: self._scalars.nbytes], body[self._scalars.nbytes :]
        whole = len(scalars) == self._scalars.nbytes and is_packed(bulk, self.terms.size, self.terms.bits)
        if message.session != self._session or not whole:
            raise Refused("mask", site, "an upload of another session, or of another form")
        self._added.add(number)
        self._scalars += np.frombuffer(scalars, "<u8")
        for start in range(0, self.terms.size, STEP):
            words = self._words[start : start + STEP]
            words += unpack(bulk[packed(start, self.terms.bits) :], len(words), self.terms.bits)

    def survivors(self) -> bytes:
        """Closes the step. What each of the sites whose uploads are in the sum gets."""
        self._close("mask", self._added, "sign")
        self._transcript = keys.transcript(self._session, sorted(self._shares), sorted(self._added))
        return Survivors(self._session, tuple((number, b"") for number in sorted(self._added))).to_bytes()

    def sign(self, site: str, data: bytes) -> None:
        """A site's signature over the survivors."""
        number, message = self._read("sign", site, Consent, data, self._consents, self._added)
        if not self._is_signed(site, message.signature, self._transcript):
            raise Refused("sign", site, "it has not signed these survivors")
        self._consents[number] = data

    def consents(self) -> list[bytes]:
        """Closes the step. What each of the sites whose updates are in the sum gets: as many as it asks for."""
        self._close("sign", self._consents, "unmask")
        return [self._consents[number] for number in sorted(self._consents)[: self.terms.threshold]]

    def unmask(self, site: str, data: bytes) -> None:
        """A site's shares of what takes the masks off."""
        number, message = self._read("unmask", site, Opening, data, self._seeds, self._added)
        seeds, lost = (tuple(number for number, _ in rows) for rows in (message.seeds, message.keys))
        if message.session != self._session or seeds != tuple(sorted(self._added)) or lost != tuple(self._lost()):
            raise Refused("unmask", site, "shares of another session, or of other sites")
        self._seeds[number], self._keys[number] = dict(message.seeds), dict(message.keys)

    def total(self) -> Total:
        """Closes the last step: takes the masks off, and says what the sum is. The attempt is over with it."""
        self._close("unmask", self._seeds, None)
        left = self._masks()
        while masks := list(islice(left, BATCH)):
            self._stream.add(self._scalars, [(mask.scalars, mask.sign) for mask in masks])
            self._stream.add(self._words, [(mask.bulk, mask.sign) for mask in masks])
        return Total(self.terms, tuple(self.terms.sites[n] for n in sorted(self._added)), self._words, self._scalars)

    def _lost(self) -> list[int]:
        """Sites whose masks are in the sum, but not their updates."""
        return sorted(self._shares.keys() - self._added)

    def _masks(self) -> Iterator[Mask]:
        """What takes the masks off the sum."""
        for number in sorted(self._added):
            yield keys.self_mask(self._seed(number), self._session, -1)
        for number in self._lost():
            yield from self._pairs(number)

    def _seed(self, number: int) -> bytes:
        right = self._adverts[number].commitment
        return self._joined(self._seeds, number, lambda seed: keys.commitment(self.terms.digest, number, seed) == right)

    def _pairs(self, lost: int) -> Iterator[Mask]:
        """What takes the masks that a lost site has in common with the others off the sum."""
        key = keys.loaded(self._joined(self._keys, lost, lambda key: keys.public(key) == self._adverts[lost].mask))
        for number in sorted(self._added):
            pair = keys.exchange(key, self._adverts[number].mask)
            yield keys.pair_masks(pair, self._session, -1 if number > lost else 1)

    def _joined(self, given: Mapping[int, Mapping[int, bytes]], number: int, right: Callable[[bytes], bool]) -> bytes:
        """A secret from its shares. Where more came than are needed, one that is wrong does no harm."""
        shares = {giver + 1: shares[number] for giver, shares in sorted(given.items())}
        points, need = [*shares, *shares], self.terms.threshold
        for start in range(len(shares) if len(shares) > need else 1):
            try:
                secret = shamir.join({point: shares[point] for point in points[start : start + need]})
            except ValueError:
                continue
            if right(secret):
                return secret
        raise Refused("unmask", None, f"a site has sent a wrong share of a secret of {self.terms.sites[number]}")

    def _is_signed(self, site: str, signature: bytes, message: bytes) -> bool:
        member = self.roster.member(site)
        return member is not None and keys.is_signed(member.sign, signature, message)

    def _delivery(self, receiver: int) -> bytes:
        sealed = tuple((n, self._shares[n][receiver]) for n in sorted(self._shares) if n != receiver)
        return Delivery(receiver, self._session, sealed).to_bytes()

    def _close(self, step: Step, there: Collection[int], following: Step | None) -> None:
        if self._open != step:
            raise Refused(step, None, f"out of turn; the step that is open is {self._open or 'none'}")
        self._open = None  # stands if too few are there
        check_enough(step, there, self.terms)
        self._open = following

    def _read(
        self,
        step: Step,
        site: str,
        kind: type[M],
        data: bytes | memoryview,
        heard: Collection[int],
        allowed: Collection[int] | None = None,
    ) -> tuple[int, M]:
        """A message of a site that may speak in this step, and has not yet."""
        number = self._numbers.get(site)
        if self._open != step:
            raise Refused(step, site, f"out of turn; the step that is open is {self._open or 'none'}")
        if number is None or (allowed is not None and number not in allowed):
            raise Refused(step, site, "it takes no part in this step")
        if number in heard:
            raise Refused(step, site, "a second message")
        try:
            message = kind.from_bytes(data)
        except Malformed as error:
            raise Refused(step, site, f"a message that cannot be read: {error}") from error
        if getattr(message, "site", None) != number:
            raise Refused(step, site, "a message in the name of another site")
        return number, message
