"""A site's half of secure aggregation: it says what it must and no more, whatever the server asks.

    advertise -> its keys for this attempt, signed
    share     -> its secrets in sealed shares; all keys came in (those sites are U1)
    receive      the shares of the others came in (U2)
    mask      -> its update under masks
    sign      -> its signature; the list of whose updates are in the sum came in (U3)
    unmask    -> shares of what takes the masks off that sum, once enough sites signed the same

Pure: keys and randomness come in, bytes go out. What goes wrong raises `Refused`; the attempt is then over at this
site, and its secrets are gone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hansa.roster import Roster
from privacy.secagg import keys, shamir
from privacy.secagg.agreement import (
    UNSIGNED,
    Expected,
    Past,
    agreed,
    check_enough,
    check_held,
    check_keys,
    check_signed,
)
from privacy.secagg.coding import Malformed
from privacy.secagg.errors import Refused, Step
from privacy.secagg.keystream import Keystream, Mask
from privacy.secagg.messages import Advert, Consent, Delivery, Header, Message, Opening, Shares, Survivors, session
from privacy.secagg.packing import pack
from privacy.secagg.quantise import Update

M = TypeVar("M", bound=Message)
UNLIKE = "it has not signed the same survivors"


@dataclass
class Held:
    """What a site must forget when the attempt is over."""

    advert: Advert | None = None
    channel_key: bytes = field(default=b"", repr=False)
    mask_key: bytes = field(default=b"", repr=False)
    seed: bytes = field(default=b"", repr=False)
    session: bytes = b""
    channels: dict[int, bytes] = field(default_factory=dict, repr=False)  # shared with another site, for sealing
    pairs: dict[int, Mask] = field(default_factory=dict)  # masks in common with another site
    seeds: dict[int, bytes] = field(default_factory=dict, repr=False)  # a share of each site's seed
    keys: dict[int, bytes] = field(default_factory=dict, repr=False)  # and of its mask key
    survivors: tuple[int, ...] = ()


class Site:
    """One attempt at one round.

    Args:
        name: of the site.
        key: by which it signs, and which the roster has the public half of.
        roster: the consortium's, as it is pinned at the site.
        terms: of the attempt, as they came from the server.
        expected: what the terms must say.
        past: of the run, as it was remembered.
        random: so many bytes from the operating system.
        stream: how masks are made.

    Raises:
        Refused: by this and each step.
    """

    def __init__(
        self,
        name: str,
        key: Ed25519PrivateKey,
        roster: Roster,
        terms: bytes,
        expected: Expected,
        past: Past,
        random: Callable[[int], bytes],
        stream: Keystream,
    ) -> None:
        self.terms = agreed(terms, name, roster, expected, past)
        self.name, self.roster, self.past = name, roster, past
        self._key, self._random, self._stream = key, random, stream
        self._me = self.terms.sites.index(name)
        self._least = expected.least(len(self.terms.sites))
        self._next: Step | None = "advertise"
        self._held = Held()

    @property
    def alike(self) -> frozenset[int]:
        """The sites that start from the same version of memory as this one, if they are enough to give anything.

        A server that had them trained apart can make the update of any others vanish from the sum.
        """
        found = self.terms.alike(self.name)
        return found if len(found) >= self._least else frozenset()

    def advertise(self, metrics: Iterable[int] | None = None) -> bytes:
        """Makes keys, and signs them together with the terms. `past` is new afterwards.

        Args:
            metrics: places of those that this site has among the terms'; None: all.
        """
        with self._step("advertise", "share"):
            terms, held = self.terms, self._held
            self.past = replace(self.past, opened=terms.mark, asked=terms.sites, threshold=terms.threshold)
            held.channel_key, held.mask_key, held.seed = (self._random(32) for _ in range(3))
            commitment = keys.commitment(terms.digest, self._me, held.seed)
            public = keys.public(held.channel_key), keys.public(held.mask_key)
            places = range(len(terms.scalars)) if metrics is None else sorted(metrics)
            unsigned = Advert(self._me, *public, commitment, tuple((place, b"") for place in places), bytes(64))
            held.advert = replace(unsigned, signature=self._key.sign(unsigned.signed(terms.digest)))
            return held.advert.to_bytes()

    def share(self, adverts: Sequence[bytes]) -> bytes:
        """Takes the keys of all sites, its own among them, and shares its secrets among them."""
        with self._step("share", "receive"):
            others, held = self._checked(self._read_all("share", Advert, adverts)), self._held
            held.session = session(self.terms.digest, others)
            points, count = [advert.site + 1 for advert in others], self.terms.threshold
            seeds = shamir.split(held.seed, count, points, self._random)
            secrets = shamir.split(held.mask_key, count, points, self._random)
            own, sealed = (keys.loaded(held.channel_key), keys.loaded(held.mask_key)), {}

            def seal(at: int) -> None:
                if (advert := others[at]).site == self._me:
                    held.seeds[self._me], held.keys[self._me] = seeds[at], secrets[at]
                else:
                    sealed[advert.site] = self._sealed(own, advert, seeds[at] + secrets[at])

            signed = [(self.terms.sites[a.site], a.signature, a.signed(self.terms.digest)) for a in others]
            check_signed(signed, self.roster, self._stream, "share", UNSIGNED, seal)
            held.channel_key = held.mask_key = b""
            return Shares(self._me, held.session, tuple(sorted(sealed.items()))).to_bytes()

    def receive(self, delivery: bytes) -> None:
        """Takes the shares of the other sites that sent theirs."""
        with self._step("receive", "mask"):
            message = self._read("receive", Delivery, delivery)
            if message.site != self._me or message.session != self._held.session:
                raise Refused("receive", None, "shares for another site, or of another session")
            senders = [number for number, _ in message.sealed]
            if not set(senders) <= self._held.channels.keys():
                raise Refused("receive", None, "shares of a site that has sent no keys")
            check_enough("receive", [self._me, *senders], self.terms)
            for number, sealed in message.sealed:
                shares = keys.opened(self._held.channels[number], self._held.session, number, self._me, sealed)
                halves = (shares[: shamir.SIZE], shares[shamir.SIZE :]) if shares else (b"", b"")
                if not all(map(shamir.is_share, halves)):
                    raise Refused("receive", self.terms.sites[number], "shares that were changed, or not for this site")
                self._held.seeds[number], self._held.keys[number] = halves
            self._held.channels = {}

    def mask(self, update: Update) -> Iterator[bytes | memoryview]:
        """Its update under masks, in pieces of a megabyte or less. The update itself stays as it is."""
        with self._step("mask", "sign"):
            if update.form != self.terms.form or update.sites < len(self.terms.sites):
                raise Refused("mask", self.name, "an update that was made for other terms")
            masks = [self._held.pairs[number] for number in self._shared if number != self._me]
            masks.append(keys.self_mask(self._held.seed, self._held.session, 1))
            self._held.pairs, self._held.seed = {}, b""
            return self._upload(update, masks)

    def sign(self, survivors: bytes) -> bytes:
        """Signs whose updates are in the sum: one set an attempt. Asked again, it says the same."""
        with self._step("sign", "unmask", again=True):
            message = self._read("sign", Survivors, survivors)
            found = tuple(number for number, _ in message.sites)
            if message.session != self._held.session:
                raise Refused("sign", None, "survivors of another session")
            if self._me not in found or not set(found) <= set(self._shared):
                raise Refused("sign", None, "survivors without this site, or with one that shared nothing")
            check_enough("sign", found, self.terms)
            if self.alike and len(self.alike & set(found)) < self._least:
                raise Refused("sign", None, f"survivors of which fewer than {self._least} start as this site does")
            if self._held.survivors not in ((), found):
                raise Refused("sign", None, "other survivors than this site has signed")
            self._held.survivors = found
            return Consent(self._me, self._key.sign(self._transcript())).to_bytes()

    def unmask(self, consents: Sequence[bytes]) -> bytes:
        """Its shares, once enough sites signed what it signed. Asked again, it says the same. `past` is new afterwards.

        Which shares it gives follows from what was signed, so that both secrets of one site are never among them.
        """
        with self._step("unmask", "unmask"):
            found, transcript = self._read_all("unmask", Consent, consents), self._transcript()
            signed = [(self.terms.sites[consent.site], consent.signature, transcript) for consent in found]
            for consent in found:
                if consent.site not in self._held.survivors:
                    raise Refused("unmask", self.terms.sites[consent.site], UNLIKE)
            check_signed(signed, self.roster, self._stream, "unmask", UNLIKE)
            check_enough("unmask", [consent.site for consent in found], self.terms)
            self.past = replace(self.past, answered=self.terms.round)
            seeds = tuple((number, self._held.seeds[number]) for number in self._held.survivors)
            lost = tuple((n, self._held.keys[n]) for n in self._shared if n not in self._held.survivors)
            return Opening(self._me, self._held.session, seeds, lost).to_bytes()

    def erase(self) -> None:
        """Ends the attempt: its round is committed, or given up. No copy is kept that Python knows of."""
        self._next, self._held = None, Held()

    @property
    def summed(self) -> tuple[str, ...]:
        """Whose updates are in the sum, by what it has signed."""
        return tuple(self.terms.sites[number] for number in self._held.survivors)

    @property
    def _shared(self) -> list[int]:
        return sorted(self._held.seeds)

    def _transcript(self) -> bytes:
        return keys.transcript(self._held.session, self._shared, self._held.survivors)

    @contextmanager
    def _step(self, step: Step, following: Step, again: bool = False) -> Iterator[None]:
        """A step that is allowed now (or once more); unless it ends well, the attempt is over."""
        allowed = (step, following) if again else (step,)
        expected, self._next = self._next, None
        try:
            if expected not in allowed:
                raise Refused(step, self.name, f"out of turn; its next step is {expected or 'none'}")
            yield
        except BaseException:
            self.erase()
            raise
        self._next = following

    def _read(self, step: Step, kind: type[M], data: bytes) -> M:
        try:
            message = kind.from_bytes(data)
        except Malformed as error:
            raise Refused(step, None, f"a message that cannot be read: {error}") from error
        numbers = [getattr(message, "site", 0), *(number for number, _ in getattr(message, "sealed", ()))]
        if max(numbers) >= len(self.terms.sites):
            raise Refused(step, None, "a site that is not in the terms")
        return message

    def _read_all(self, step: Step, kind: type[M], all_data: Sequence[bytes]) -> list[M]:
        if len(all_data) > len(self.terms.sites):
            raise Refused(step, None, f"{len(all_data)} messages of {len(self.terms.sites)} sites")
        return [self._read(step, kind, data) for data in all_data]

    def _checked(self, adverts: Sequence[Advert]) -> list[Advert]:
        """Everybody's keys in order, if all are good; whether they are signed is not looked at."""
        found: dict[int, Advert] = {}
        taken: set[bytes] = set()
        for advert in sorted(adverts, key=lambda advert: advert.site):
            if advert.site in found:
                raise Refused("share", self.terms.sites[advert.site], "two sets of keys")
            check_keys(advert, taken, self.terms, "share")
            found[advert.site] = advert
            taken |= {advert.channel, advert.mask}
        if found.get(self._me) != self._held.advert:
            raise Refused("share", self.name, "its own keys are not as it sent them")
        check_enough("share", found, self.terms)
        check_held("share", found.values(), self.terms)
        return list(found.values())

    def _sealed(self, own: tuple[X25519PrivateKey, X25519PrivateKey], advert: Advert, shares: bytes) -> bytes:
        """Two shares for another site, of which the keys for masks are made as well."""
        channel, pair = keys.exchange(own[0], advert.channel), keys.exchange(own[1], advert.mask)
        self._held.channels[advert.site] = channel
        self._held.pairs[advert.site] = keys.pair_masks(pair, self._held.session, 1 if self._me > advert.site else -1)
        return keys.seal(channel, self._held.session, self._me, advert.site, shares)

    def _upload(self, update: Update, masks: Sequence[Mask]) -> Iterator[bytes | memoryview]:
        yield Header(self._me, self._held.session).to_bytes()
        scalars = update.scalars.copy()
        self._stream.add(scalars, [(mask.scalars, mask.sign) for mask in masks])
        yield scalars.tobytes()
        bulk = [(mask.bulk, mask.sign) for mask in masks]
        yield from self._stream.pieces(update.words, bulk, lambda words: pack(words, self.terms.bits))
