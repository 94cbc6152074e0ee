"""A site's ledger: what has left of one set of rows, over all runs, and what may still leave.

One ledger protects one kind of unit of one data set; what protects rows and what protects patients is never added up.
A release is reserved before anything leaves. A reserve that was never settled, because the process died, counts in full
for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hansa.errors import UserError
from privacy.dp.accounting import epsilon
from privacy.dp.chain import SUFFIX, Chain, Entries
from privacy.dp.cost import Cost
from privacy.dp.mechanism import Event, Unit

LONGEST = 200  # bytes of a file's name


class OverBudget(UserError):
    """A release that the ledger has nothing left for."""


@dataclass(frozen=True)
class Limit:
    """What may be spent in all: epsilon at delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < float("inf") and 0 < self.delta < 1):
            raise ValueError(f"no such limit: {self}")


@dataclass(frozen=True)
class Subject:
    """Whom a ledger protects.

    Args:
        dataset: the name that the site gave its rows.
        unit: of privacy.
        column: whose value names a group; with unit "group" only.
    """

    dataset: str
    unit: Unit
    column: str | None = None

    def __post_init__(self) -> None:
        if (self.column is None) == (self.unit == "group"):
            raise ValueError(f"no such subject: {self}")

    @property
    def file(self) -> str:
        """The name of its ledger's file."""
        parts = (self.dataset, self.unit, *([self.column] if self.column is not None else []))
        name = ".".join(quote(part, safe="").replace(".", "%2E") for part in parts)
        if len(name) > LONGEST:
            raise UserError(f"the name of a data set, {self.dataset[:40]}..., is too long for a ledger; shorten it")
        return f"{name}{SUFFIX}"

    def __str__(self) -> str:
        return f"{self.dataset}, {self.unit}" + ("" if self.column is None else f" by {self.column}")


@dataclass(frozen=True)
class Debit:
    """One reserve, as it counts now.

    Args:
        number: of its entry.
        run, round, attempt: what it was for.
        event: what counts of it; None: nothing left the site.
        settled: whether it was; if not, it counts in full.
    """

    number: int
    run: str
    round: int
    attempt: str
    event: Event | None
    settled: bool = False


@dataclass(frozen=True)
class Account:
    """What stands in a ledger."""

    subject: Subject
    limit: Limit
    debits: Mapping[int, Debit]  # by number
    entries: Entries

    def cost(self, *more: Event, run: str | None = None) -> Cost:
        """Of all that counts, of one run or all, and of something more."""
        kept = [debit.event for debit in self.debits.values() if debit.event and run in (None, debit.run)]
        return epsilon([*kept, *more], self.limit.delta)

    @property
    def runs(self) -> list[str]:
        """That have debits, in order."""
        return list(dict.fromkeys(debit.run for debit in self.debits.values()))


class Ledger:
    """The ledger of a subject; made where there is none yet.

    Args:
        folder: of all ledgers of the site.
        subject: whom it protects.
        limit: as the site's own file has it now; a changed one is noted.
        clock: gives the time, with its zone.

    Raises:
        UserError: the ledger is damaged, or is another's.
    """

    def __init__(
        self, folder: Path, subject: Subject, limit: Limit, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.subject, self._chain, self._clock = subject, Chain(folder / subject.file), clock
        with self._chain.locked():
            entries = self._chain.read()
            if not entries.bodies:
                said = {"what": "opening", **asdict(subject), **asdict(limit)}
                entries = self._chain.append(entries, self._stamped(said))
            account = account_of(self._chain.path, entries)
            if account.limit != limit:
                self._chain.append(entries, self._stamped({"what": "limit", **asdict(limit)}))

    def account(self) -> Account:
        """What stands in it now; other processes may have added to it.

        Raises:
            UserError: it is damaged.
        """
        with self._chain.locked():
            return account_of(self._chain.path, self._chain.read())

    def reserve(self, run: str, round: int, attempt: str, event: Event) -> Debit:
        """Debits a release. When this returns it is on disk, and only then may anything be released.

        Args:
            run: the run's id.
            round: in it.
            attempt: names the noise that will be drawn: whoever draws anew, reserves anew.
            event: all that may be released.

        Raises:
            OverBudget: there is not that much left; the ledger is as it was.
            UserError: the ledger is damaged, or this attempt was debited before.
        """
        with self._chain.locked():
            entries = self._chain.read()
            account = account_of(self._chain.path, entries)
            if any((run, round, attempt) == (d.run, d.round, d.attempt) for d in account.debits.values()):
                raise UserError(f"{self.subject}: round {round} of run {run}, attempt {attempt}, was debited before")
            cost = account.cost(event)
            if cost.epsilon > account.limit.epsilon:
                raise OverBudget(_refusal(account, event, cost))
            said = {"what": "reserve", "run": run, "round": round, "attempt": attempt, "event": asdict(event)}
            entries = self._chain.append(entries, self._stamped({**said, "after": cost.epsilon}))
            return Debit(len(entries.bodies), run, round, attempt, event)

    def settle(self, debit: Debit, released: Event | None) -> None:
        """Says what has left the site of what was reserved.

        Args:
            debit: that `reserve` gave.
            released: all of it, fewer of the same releases, or None: not a byte of it.

        Raises:
            UserError: the ledger is damaged, has no such reserve, or that is settled.
        """
        with self._chain.locked():
            entries = self._chain.read()
            account = account_of(self._chain.path, entries)
            if account.debits.get(debit.number) != debit or debit.settled or debit.event is None:
                raise UserError(f"{self.subject}: entry {debit.number} is no open reserve of run {debit.run}")
            if released is not None and not _within(released, debit.event):
                raise ValueError(f"{released} is not within {debit.event}")
            said = {"what": "settle", "of": debit.number, "event": None if released is None else asdict(released)}
            self._chain.append(entries, self._stamped(said))

    def _stamped(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"time": self._clock().isoformat(), **said}


def ledgers(folder: Path) -> list[Path]:
    """The files of a folder's ledgers, also of those of which only the head is left."""
    names = {path.with_suffix(SUFFIX) for kind in (SUFFIX, ".head") for path in folder.glob(f"*{kind}")}
    return sorted(names)


def read_account(path: Path) -> Account:
    """What stands in one ledger.

    Raises:
        UserError: it is damaged, with file and line.
    """
    chain = Chain(path)
    with chain.locked():
        return account_of(path, chain.read())


def account_of(path: Path, entries: Entries) -> Account:
    """What entries mean.

    Raises:
        UserError: entries under right hashes that make no sense, or are of another subject than the file's name says.
    """
    limit, subject, debits = None, None, {}
    for number, body in enumerate(entries.bodies, 1):
        try:
            match body["what"]:
                case "opening" if number == 1:
                    subject = Subject(body["dataset"], body["unit"], body["column"])
                    limit = Limit(body["epsilon"], body["delta"])
                case "limit" if number > 1:
                    limit = Limit(body["epsilon"], body["delta"])
                case "reserve" if number > 1:
                    debits[number] = Debit(number, body["run"], body["round"], body["attempt"], Event(**body["event"]))
                case "settle":
                    left = None if body["event"] is None else Event(**body["event"])
                    debits[body["of"]] = replace(debits[body["of"]], event=left, settled=True)
                case _:
                    raise ValueError
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}, line {number}: no entry of a ledger; nothing more is released by it") from error
    if subject is None or limit is None:
        raise UserError(f"{path}, line 1: the ledger was never opened; nothing is released by it")
    if path.name != subject.file:
        raise UserError(f"{path}: this is the ledger of {subject}, {subject.file}; give it its name back")
    return Account(subject, limit, debits, entries)


def _within(released: Event, reserved: Event) -> bool:
    same = (released.noise_multiplier, released.sample_rate) == (reserved.noise_multiplier, reserved.sample_rate)
    return same and 0 < released.count <= reserved.count


def _refusal(account: Account, event: Event, cost: Cost) -> str:
    spent, alone, limit = account.cost(), epsilon([event], account.limit.delta), account.limit
    return (
        f"{account.subject}: epsilon {spent.shown} is spent and {alone.shown} asked for, {cost.shown} together, "
        f"above this site's limit of {limit.epsilon:g} at delta = {limit.delta:g}; nothing was released"
    )
