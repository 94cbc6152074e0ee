"""What a site says in each step of an attempt at secure aggregation, and what it refuses: it then says no more."""

from collections.abc import Mapping

from clients import refusals
from clients.audit import OPENED
from clients.failures import LINES, Failure
from clients.ground import Ground
from clients.hand import Hand
from clients.past import Start, Sum
from clients.rounding import Shapes, metrics_of
from clients.sumrules import check_terms, is_pair
from hansa.records import Part
from hansa.wire.link_pb2 import Plan, Secure, SiteFrame
from hansa.wire.link_pb2 import Refused as RefusedFrame
from hansa.wire.secure import PURPOSES, model_digest, plan_digest, purpose_of, version_of
from privacy.secagg.agreement import Expected
from privacy.secagg.errors import Refused
from privacy.secagg.site import Site

MORE = 4  # evaluations of one kind beyond the rounds of training in a run; a run has one, and one for each new start


def advertise(ground: Ground, hand: Hand, parts: Mapping[str, Part], sums: Shapes) -> SiteFrame:
    """The first word: this site's keys, or why it does not agree to the terms.

    Args:
        ground: of the run.
        hand: a plan whose attempt is new.
        parts: what the strategy uploads.
        sums: the metric sums that the site has.
    """
    plan = hand.plan
    try:
        site = _agreed(ground, plan, parts)
        start = _start(ground, plan, site)
        advert = site.advertise(metrics_of(site.terms, plan, start.base, sums))
        ground.past.put(site.past, start if plan.kind == "train" else None)
    except refusals.Refused as error:
        _note(ground, hand, error.code, error.detail)
        return SiteFrame(refused=RefusedFrame(plan=plan.id, code=error.code, line=str(error)))
    except (Refused, OSError) as error:
        return leave(ground, hand, "advertise", error)
    hand.site, hand.terms, hand.alike = site, site.terms, bool(site.alike)
    return hand.frame("advertise", advert)


def answer(ground: Ground, hand: Hand, message: Secure) -> SiteFrame | None:
    """What to say to a later step. A step that was taken is answered as it was."""
    step = message.step
    if hand.site is None:
        return None
    if step in hand.said or (step == "mask" and hand.delivered):
        return hand.said.get(step)
    try:
        data = _answered(ground, hand, hand.site, step, list(message.messages))
    except (Refused, OSError) as error:
        return leave(ground, hand, step, error)
    if data is not None:
        hand.said[step] = hand.frame(step, data)
    return hand.said.get(step)


def leave(ground: Ground, hand: Hand, step: str, error: Exception) -> SiteFrame:
    """This site takes no further part in the attempt."""
    code = Failure.SECURE
    frame = SiteFrame(refused=RefusedFrame(plan=hand.plan.attempt, code=code, line=LINES[code]))
    hand.site, hand.said = None, {"advertise": frame}
    _note(ground, hand, step, str(error))
    return frame


def _agreed(ground: Ground, plan: Plan, parts: Mapping[str, Part]) -> Site:
    """This site in an attempt to whose terms it agrees.

    Raises:
        clients.refusals.Refused: they are not as the site's [policy] or the app has it.
        Refused: they are not as the protocol or the plan has it.
    """
    purpose, floor, members = purpose_of(plan), ground.policy, len(ground.roster.sites)
    if purpose not in PURPOSES:
        raise Refused("advertise", None, f"a plan to {plan.kind} on {plan.split} rows, which there is not")
    asked = parts if plan.kind == "train" else {}
    expected = Expected(plan_digest(plan), asked, floor.min_sites, is_pair(floor, members))
    who = ground.site, ground.key, ground.roster
    site = Site(*who, plan.terms, expected, ground.past.of(purpose), ground.random, ground.stream)
    check_terms(floor, site.terms, ground.said, members)
    return site


def _start(ground: Ground, plan: Plan, site: Site) -> Start:
    """From which memory this site starts in a round of its own.

    Raises:
        Refused: of another round than the plan's, from a memory that it has not, or one evaluation too many.
    """
    terms, purpose = site.terms, purpose_of(plan)
    if plan.kind == "train" and terms.round != plan.round:
        raise Refused("advertise", None, f"terms of round {terms.round} for a plan of {plan.round}")
    base = terms.start(ground.site)
    if (held := ground.held(base)) is None:
        raise Refused("advertise", None, f"a start from version {base!r}, and this site has {ground.past.start}")
    if plan.kind != "train" and len(ground.past.sums(purpose)) >= ground.past.of("train-valid").answered + MORE:
        raise Refused("advertise", None, "more evaluations than the run's rounds of training allow")
    return Start(version_of(plan), base, held)


def _answered(ground: Ground, hand: Hand, site: Site, step: str, messages: list[bytes]) -> bytes | None:
    match step:
        case "share":
            return site.share(messages)
        case "mask":
            site.receive(b"".join(messages))
            hand.delivered = True
            return None
        case "sign":
            consent = site.sign(b"".join(messages))
            _check_sum(ground, hand.plan, site)
            return consent
        case "unmask":
            return _unmask(ground, hand, site, messages)
    raise Refused("advertise", None, "a step that there is not; are both ends of one version of hansa?")


def _check_sum(ground: Ground, plan: Plan, site: Site) -> None:
    """Raises Refused if the sum, beside one of the same model that was opened, says too much of few sites."""
    model, least = model_digest(plan), ground.policy.min_sites
    for former in ground.past.sums(purpose_of(plan)):
        others = sorted(set(site.summed) ^ set(former.sites))
        if former.model == model and others and (plan.kind == "evaluate" or len(others) < least):
            raise Refused("sign", None, f"a sum of the same model as before, but for {', '.join(others)}")


def _unmask(ground: Ground, hand: Hand, site: Site, consents: list[bytes]) -> bytes:
    opening, terms = site.unmask(consents), site.terms
    ground.past.put(site.past, opened=Sum(model_digest(hand.plan), site.summed))
    facts = {"round": terms.round, "purpose": terms.purpose, "attempt": hand.plan.attempt}
    ground.note(ground.run, OPENED, **facts, sites=len(site.summed), threshold=terms.threshold)
    return opening


def _note(ground: Ground, hand: Hand, what: str, why: str) -> None:
    ground.say(f"round {hand.plan.round}: {why}")
    facts = {"round": hand.plan.round, "purpose": purpose_of(hand.plan), "attempt": hand.plan.attempt}
    ground.note(ground.run, "refused", **facts, code=what, detail=why)
