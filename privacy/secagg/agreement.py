"""What a site holds the server's terms against, and which keys count: checks before any secret is used."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hansa.errors import UserError
from hansa.records import Part
from hansa.roster import Roster
from privacy.secagg import keys
from privacy.secagg.coding import Malformed
from privacy.secagg.errors import Refused, Step
from privacy.secagg.keystream import Keystream
from privacy.secagg.messages import Advert
from privacy.secagg.terms import LEAST_SITES, Terms, roster_digest, threshold

Claim = tuple[str, bytes, bytes]  # a site, its signature, what it is over
UNSIGNED = "keys that are not signed for these terms by its key in the roster"


@dataclass(frozen=True)
class Past:
    """What a site remembers of a run's rounds of one purpose. It must be on disk before the bytes of its step leave."""

    run: str
    purpose: str
    opened: tuple[int, int, int] = (0, 0, 0)  # epoch, round, attempt: the newest for which it made keys
    asked: tuple[str, ...] = ()  # the sites of that attempt
    threshold: int = 0  # and its threshold
    answered: int = 0  # the newest round whose sum it helped to open


@dataclass(frozen=True)
class Expected:
    """What a site knows by itself."""

    model: bytes  # SHA-256 of the global model that it has
    parts: Mapping[str, Part]  # of the strategy's uploads
    sites: int = LEAST_SITES  # fewest over which a sum may be opened; never below this default
    pair: bool = False  # whether a sum over two may be, if only two are asked: each then learns the other's part

    def least(self, asked: int) -> int:
        """The fewest sites over which a sum may be opened, of so many."""
        return 2 if self.pair and asked == 2 else max(self.sites, LEAST_SITES)


def agreed(data: bytes, site: str, roster: Roster, expected: Expected, past: Past) -> Terms:
    """The server's terms, if this site agrees to them.

    A new attempt at a round asks no other sites and has no lower threshold: of the sites that open either sum more than
    a third are the same then, and the honest ones open one.

    Raises:
        Refused: it does not agree.
    """
    try:
        terms = Terms.from_bytes(data)
    except (Malformed, UserError) as error:
        raise Refused("advertise", None, str(error)) from error
    n, strangers = len(terms.sites), [name for name in terms.sites if not roster.member(name)]
    again = terms.round == past.opened[1]
    others = sorted(set(terms.sites) - set(past.asked)) if again else []
    least = max(threshold(n), expected.least(n), past.threshold if again else 0)
    parts = {part.name: Part(part.size, part.weight) for part in terms.parts}
    rules = [
        (terms.run == past.run, f"terms of run {terms.run}, here is {past.run}"),
        (terms.purpose == past.purpose, f"terms of a round to {terms.purpose}, where it is to {past.purpose}"),
        (terms.mark > past.opened, "terms of an attempt that was made before, or is older"),
        (terms.round >= past.opened[1], f"a round before {past.opened[1]}, which this site has begun"),
        (not others, f"a new attempt at this round that asks others: {', '.join(others)}"),
        (terms.round > past.answered, f"this site has helped to open round {past.answered} already"),
        (not strangers, f"sites that are not in the roster: {', '.join(strangers)}"),
        (terms.roster == roster_digest(roster, terms.sites), "terms with other keys of the sites than its roster has"),
        (site in terms.sites, "terms without this site"),
        (terms.threshold >= least, f"a threshold of {terms.threshold} of {n} sites, of which {least} are needed here"),
        (terms.model == expected.model, "terms with another global model than the one that came"),
        (parts == dict(expected.parts), "terms with other parts than the strategy's"),
    ]
    for good, problem in rules:
        if not good:
            raise Refused("advertise", None, problem)
    return terms


def check_signed(
    claims: Sequence[Claim],
    roster: Roster,
    stream: Keystream,
    step: Step,
    reason: str,
    use: Callable[[int], None] = lambda at: None,
) -> None:
    """Raises Refused, with the site and a reason, unless all have signed what they are said to have.

    A signature takes 0.1 ms to check, outside of Python's lock; so it is done in as many threads as masks are made in,
    and what holds the lock, an exchange of keys, goes on in one while another checks.

    Args:
        claims: in order; of the bad ones the first is named.
        roster: has the sites' keys.
        stream: says how many threads.
        step: in which it is.
        reason: of the refusal.
        use: gets the place of each claim that is good, at once, in any thread; the others may be bad.
    """
    signers, good = {member.name: member.sign for member in roster.sites}, [False] * len(claims)

    def work(first: int) -> None:
        for at in range(first, len(claims), stream.threads):
            site, signature, message = claims[at]
            good[at] = site in signers and keys.is_signed(signers[site], signature, message)
            if good[at]:
                use(at)

    stream.each(work)
    for (site, _, _), fine in zip(claims, good, strict=True):
        if not fine:
            raise Refused(step, site, reason)


def check_keys(advert: Advert, taken: Collection[bytes], terms: Terms, step: Step) -> None:
    """Raises Refused, with the site, unless its keys are of full order, and none of them is taken already."""
    site = terms.sites[advert.site]
    if advert.channel == advert.mask or advert.channel in taken or advert.mask in taken:
        raise Refused(step, site, "a key that is there twice")
    if not (keys.is_public(advert.channel) and keys.is_public(advert.mask)):
        raise Refused(step, site, "a key of small order")


def check_held(step: Step, adverts: Collection[Advert], terms: Terms) -> None:
    """Raises Refused if fewer of these sites than the threshold have one of the metrics: the sum would be theirs."""
    for place, scalar in enumerate(terms.scalars):
        if (have := sum((place, b"") in advert.held for advert in adverts)) < terms.threshold:
            few = f"metric {scalar.name!r} is of {have} of the sites only, and {terms.threshold} are needed"
            raise Refused(step, None, few)


def check_enough(step: Step, sites: Iterable[int], terms: Terms) -> None:
    """Raises Refused, and names those that are missing, if these sites are fewer than the threshold."""
    found = set(sites)
    if len(found) < terms.threshold:
        missing = ", ".join(site for number, site in enumerate(terms.sites) if number not in found)
        numbers = f"{len(found)} of {len(terms.sites)} sites, and {terms.threshold} are needed"
        raise Refused(step, None, f"{numbers}; missing: {missing}")
