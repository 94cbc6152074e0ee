"""What an app's federation.toml says of sums, and a site's [policy]: to both the server's terms are held."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from clients.refusals import Reason, Refused
from clients.sitefile import PolicyTable
from hansa.appfiles import FEDERATION
from hansa.choose import registered
from hansa.records import Part
from hansa.tables import FederationTable
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from privacy.secagg.terms import Terms
from privacy.secure import segment_of

MORE = 16  # rounds beyond [rounds] rounds that an evaluation may count, which a server that starts again asks anew


@dataclass(frozen=True)
class Said:
    """What an admitted app's federation.toml says of the sums of a run, to which a site holds the server."""

    privacy: PrivacyTable  # as [dp] has it
    rounds: int  # of the run
    dp: DpTable | None = None
    seed: int = 0

    @property
    def text(self) -> str:
        """All of it, in one form."""
        dp = self.dp and self.dp.model_dump(mode="json")
        return json.dumps([self.privacy.model_dump(mode="json"), self.rounds, dp, self.seed], sort_keys=True)

    def broken_by(self, terms: Terms) -> str | None:
        """What of an attempt's terms is not as it says."""
        table, asked = self.privacy, len(terms.sites)
        if unbounded := [part.name for part in terms.parts if table.bound(part.name) is None]:
            return f"no clip for part {unbounded[0]!r}"
        parts = tuple(segment_of(table, part.name, Part(part.size, part.weight), asked) for part in terms.parts)
        rules = [
            (terms.rows == (table.max_weight or 1), f"max_weight = {terms.rows}"),
            (terms.bits == table.ring_bits, f"ring_bits = {terms.bits}"),
            (terms.parts == parts, f"{terms.parts}, where it is to be {parts}"),
            (terms.threshold >= table.least(asked), f"a threshold of {terms.threshold} of {asked}"),
            (terms.round <= self.rounds + MORE, f"round {terms.round} of {self.rounds}"),
        ]
        return next((problem for good, problem in rules if not good), None)


def said_by(app: Path) -> Said:
    """What an admitted app says of sums.

    Raises:
        Refused: it cannot be read.
    """
    try:
        tables = tomllib.loads((app / FEDERATION).read_text("utf-8-sig"))
        privacy = PrivacyTable.model_validate(tables.get("privacy", {}))
        dp = DpTable.model_validate(tables["dp"]) if "dp" in tables else None
        rounds = registered("hansa.tables")["rounds"].load().model_validate(tables.get("rounds", {})).rounds
        seed = FederationTable.model_validate(tables.get("federation", {})).seed
    except ValidationError as error:
        raise Refused(Reason.FEDERATION, f"{FEDERATION} [{error.title}]: {error.error_count()} problems") from error
    return Said(privacy.under(dp), rounds, dp, seed)


def is_pair(policy: PolicyTable, members: int) -> bool:
    """Whether a sum over two sites may be opened: in a larger consortium the server would have it of all pairs."""
    return policy.allow_two_sites and members == 2


def check_terms(policy: PolicyTable, terms: Terms, said: Said, members: int) -> None:
    """Whether an attempt at secure aggregation is as this site and the app want it. The protocol checks the rest.

    Args:
        policy: the site's.
        terms: of the attempt.
        said: by the app.
        members: sites of the consortium.

    Raises:
        Refused: it is not.
    """
    asked, two = len(terms.sites), is_pair(policy, members)
    if terms.threshold < (2 if two and asked == 2 else policy.min_sites):
        raise Refused(
            Reason.SITES, f"a sum over {terms.threshold} of {asked} sites, where min_sites = {policy.min_sites}"
        )
    for part in terms.parts:
        if policy.max_clip is not None and part.bound > policy.max_clip:
            raise Refused(
                Reason.CLIP, f"part {part.name!r} is clipped at {part.bound:g}, max_clip = {policy.max_clip:g}"
            )
    if terms.bits < policy.min_ring_bits:
        raise Refused(Reason.RING, f"a ring of {terms.bits} bits, where min_ring_bits = {policy.min_ring_bits}")
    if (broken := said.broken_by(terms)) is not None:
        raise Refused(Reason.TERMS, f"terms with {broken}")
