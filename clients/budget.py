"""`hansa budget show` and `verify`: what a site's ledgers say."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from clients.spending import LEDGERS, UNLIMITED
from hansa.errors import UserError
from hansa.startup import SITE_FILE
from privacy.dp.ledger import Account, ledgers, read_account
from privacy.dp.statement import HONEST

Say = Callable[[str], None]
NONE_YET = "no ledger yet: nothing has left this site under [dp]"


def show(folder: Path, say: Say) -> None:
    """Prints what is spent and left in each ledger of a site.

    Raises:
        UserError: no site's folder, or a damaged ledger, with file and line.
    """
    accounts = [read_account(path) for path in _ledgers(folder)]
    if not accounts:
        say(NONE_YET)
    for place, account in enumerate(accounts):
        if place:
            say("")
        for line in _shown(account):
            say(line)


def verify(folder: Path, say: Say) -> bool:
    """Reads each ledger of a site from its first entry on, and says a line of each; whether all are whole.

    Raises:
        UserError: no site's folder.
    """
    good, paths = True, _ledgers(folder)
    for path in paths:
        try:
            account = read_account(path)
        except UserError as error:
            say(str(error))
            good = False
        else:
            say(f"{path}: whole; {_newest(account)}")
    if not paths:
        say(NONE_YET)
    return good


def _ledgers(folder: Path) -> list[Path]:
    if not (folder / SITE_FILE).exists() and not (folder / LEDGERS).exists():
        raise UserError(f"{folder}: no site's folder, there is neither {SITE_FILE} nor {LEDGERS} in it; give a site's")
    return ledgers(folder / LEDGERS)


def _shown(account: Account) -> Iterable[str]:
    cost, limit = account.cost(), account.limit
    yield str(account.subject)
    left = max(0.0, limit.epsilon - float(cost.shown))
    bounded = f" of {limit.epsilon:g}, {left:.4g} left" if limit.epsilon < UNLIMITED else ", without a limit"
    yield f"  epsilon {cost.shown} spent{bounded}, at delta = {limit.delta:g}"
    if cost.remark:
        yield f"  by {cost.accountant}: {cost.remark}"
    if account.subject.unit == "site":
        yield f"  {HONEST}"
    yield f"  {_newest(account)}"
    rows = [("run", "releases", "open", "epsilon")]
    for run in account.runs:
        debits = [debit for debit in account.debits.values() if debit.run == run]
        counted, unsettled = (
            sum(debit.event is not None for debit in debits),
            sum(not debit.settled for debit in debits),
        )
        rows.append((run, str(counted), str(unsettled), account.cost(run=run).shown))
    yield from _columns(rows) if account.runs else ()


def _newest(account: Account) -> str:
    entries = account.entries
    torn = f"; {entries.torn} bytes of an entry that was never acted upon follow" if entries.torn else ""
    return f"newest entry {len(entries.bodies)}: {entries.hash}{torn}"


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        yield "  ".join(["", first.ljust(widths[0]), *(o.rjust(w) for o, w in zip(others, widths[1:], strict=True))])
