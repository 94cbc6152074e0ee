"""What a plan takes of the site's privacy budget: reserved in the ledger before it is trained, and so before it leaves.

Light: it lives in the process that holds the session. A release that the ledger does not allow is refused there.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.child import Ready
from clients.refusals import Reason, Refused
from clients.sitefile import BudgetTable, SiteFile
from clients.sumrules import Said
from hansa.errors import UserError
from hansa.wire.link_pb2 import Plan
from privacy.dp.mechanism import Event
from privacy.dp.statement import HONEST
from privacy.dp.terms import HYPER, DpTerms, mechanism_for, site_noise, terms_in

LEDGERS = "ledgers"  # the folder in a site's folder
GROUPS = "groups"  # the column of a ledger where the app's own code says whose a row is
UNLIMITED = 1e9  # epsilon, where site.toml has no [budget]


@dataclass
class Reserve:
    """What was reserved for a plan.

    Args:
        plan: as the training process gets it: with the noise that was reserved for, in place of what it is solved from.
        left: set before anything leaves that was made under it.
    """

    plan: Plan
    left: bool = False


class Spending:
    """The budget's side of one run at a site.

    Args:
        ledgers: the folder of the site's ledgers.
        run: its id.
        file: the site's: [budget], [policy] and [data].
        said: by the app's federation.toml: a plan's [dp] and seed are those.
        note: adds a line to the audit file.
        say: writes a line to the site's log.
    """

    def __init__(
        self,
        ledgers: Path,
        run: str,
        file: SiteFile,
        said: Said,
        note: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        self.ledgers, self.run, self.budget, self.policy, self.said = ledgers, run, file.budget, file.policy, said
        self.column = None if file.data is None else file.data.split.by
        self.note, self.say = note, say

    @contextmanager
    def reserved(self, plan: Plan, ready: Ready) -> Iterator[Reserve]:
        """What a plan may release is in the ledger while it is worked on, and stays there unless nothing left.

        Args:
            plan: as it came.
            ready: what the training process has found: the number of rows.

        Raises:
            Refused: the plan is not private enough for this site, or the budget is spent.
        """
        event, terms = self._event(plan, ready)
        if event is None or terms is None:
            yield Reserve(plan)
            return
        from privacy.dp.ledger import Ledger as Book
        from privacy.dp.ledger import Limit, OverBudget, Subject  # brings the accountants, a second to import

        table = self.budget or BudgetTable(epsilon=UNLIMITED, delta=terms.delta)
        # The site names the groups: by a name of the server's choice a ledger would be begun anew.
        subject = Subject(table.dataset, terms.unit, self.column or GROUPS if terms.unit == "group" else None)
        try:
            book = Book(self.ledgers, subject, Limit(table.epsilon, table.delta))
            debit = book.reserve(self.run, plan.round, f"{plan.id} {secrets.token_hex(4)}", event)
        except OverBudget as error:
            self.note(self.run, "refused", round=plan.round, code=Reason.BUDGET, detail=str(error))
            raise Refused(Reason.BUDGET, f"round {plan.round}: {error}") from error
        except (UserError, OSError) as error:
            raise Refused(Reason.LEDGER, f"round {plan.round}: {error}") from error
        facts = {"noise": event.noise_multiplier, "rate": event.sample_rate, "count": event.count}
        self.note(self.run, "reserved", round=plan.round, subject=str(subject), **facts)
        reserve = Reserve(_with_noise(plan, event.noise_multiplier))
        try:
            yield reserve
        finally:
            book.settle(debit, event if reserve.left else None)

    def _event(self, plan: Plan, ready: Ready) -> tuple[Event | None, DpTerms | None]:
        """What a plan releases; None: nothing, or nothing that is accounted."""
        where = f"round {plan.round}"
        if plan.seed != self.said.seed:
            raise Refused(Reason.SEED, f"{where}: a seed of {plan.seed}, where federation.toml has {self.said.seed}")
        try:
            hyper: Any = json.loads(plan.hyper)
            self._check_terms(hyper.get(HYPER), where)
            terms = terms_in(hyper)
        except (UserError, ValueError, RecursionError, TypeError, AttributeError) as error:
            raise Refused(Reason.FEDERATION, f"{where}: hyper-parameters that cannot be read: {error}") from error
        if terms is None or plan.kind != "train":
            return None, terms  # no metric leaves
        if terms.unit == "site":  # the training process only clips
            return Event(site_noise(terms), 1.0, 1), terms
        if self.budget is not None and not self.budget.allow_repeats:
            terms = terms.model_copy(update={"acknowledge_repeats": False})
        try:
            return mechanism_for(terms, hyper, ready.rows, ready.groups).event, terms
        except UserError as error:
            raise Refused(Reason.UNITS, f"{where}: {error}") from error

    def _check_terms(self, given: Any, where: str) -> None:
        """Whether a plan's [dp] is the app's, and enough for this site."""
        dp = self.said.dp
        expected = None if dp is None else dp.hyper(self.said.rounds)
        if dp is not None and dp.adaptive is not None and isinstance(given, dict) and expected is not None:
            expected["clip"] = given.get("clip")  # it moves
        if given != expected:
            raise Refused(Reason.PRIVATE, f"{where}: [dp] of the plan is not that of federation.toml")
        if self.budget is not None and (dp is None or dp.unit != self.budget.unit):
            got = "no [dp]" if dp is None else f'[dp] unit = "{dp.unit}"'
            raise Refused(Reason.PRIVATE, f'{where}: {got}, where [budget] unit = "{self.budget.unit}"')
        if dp is not None and dp.unit == "site" and not self.policy.trust_server_noise:
            raise Refused(Reason.NOISE, f'{where}: [dp] unit = "site"; {HONEST}')
        if dp is not None and dp.unit == "group" and self.column not in (None, dp.group_column):
            raise Refused(
                Reason.PRIVATE,
                f"{where}: [dp] group_column = {dp.group_column!r}, where [data] split.by = {self.column!r}",
            )


def _with_noise(plan: Plan, noise_multiplier: float) -> Plan:
    given = Plan()
    given.CopyFrom(plan)
    hyper = json.loads(plan.hyper)
    hyper[HYPER].pop("epsilon", None)
    hyper[HYPER]["noise_multiplier"] = noise_multiplier
    given.hyper = json.dumps(hyper)
    return given
