"""The plan that a site has in hand under secure aggregation, and how far its attempt is."""

from dataclasses import dataclass, field

from hansa.wire.link_pb2 import Plan, Secure, SiteFrame
from hansa.wire.secure import plan_digest
from privacy.secagg.quantise import Update
from privacy.secagg.site import Site
from privacy.secagg.terms import Terms


@dataclass
class Hand:
    """See the module."""

    plan: Plan
    terms: Terms | None = None  # of the attempt, if this site agrees to them
    site: Site | None = None  # in the attempt
    alike: bool = True  # whether enough sites start as this one does for it to give anything
    said: dict[str, SiteFrame] = field(default_factory=dict)  # in the attempt, by step
    delivered: bool = False  # the shares of the others are here
    masking: bool = False  # the update is on its way
    update: Update | None = None  # outlives an attempt

    @property
    def trained(self) -> bool:
        """Whether the update is there, as the attempt's terms have it."""
        update, terms = self.update, self.terms
        if update is None or terms is None:
            return False
        return update.form == terms.form and update.sites >= len(terms.sites)

    def of(self, plan: Plan) -> bool:
        """Whether a plan is this one again, perhaps for another attempt: an update belongs to one plan alone."""
        return self.plan.id == plan.id and plan_digest(self.plan) == plan_digest(plan)

    def turn_to(self, plan: Plan) -> None:
        """Begins another attempt at the same plan."""
        self.plan, self.site, self.terms, self.said = plan, None, None, {}
        self.delivered = self.masking = False

    def frame(self, step: str, data: bytes) -> SiteFrame:
        """What this site says in a step."""
        return SiteFrame(secure=Secure(attempt=self.plan.attempt, step=step, messages=[data]))
