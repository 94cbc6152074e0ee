"""Who is in the consortium, by verb: sites ask to join, the administrator decides, sites hear of it."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from hansa.request import Unsound
from server import enrolment, publishing
from server.asking import Ask, Denied, Handler

Done = Mapping[str, Any]


def told(work: Callable[[Ask], Done]) -> Handler:
    """Tells a caller, and the record, why a request is not sound."""

    def handle(ask: Ask) -> Done:
        try:
            return work(ask)
        except Unsound as refusal:
            raise Denied(refusal.code, str(refusal)) from None

    return handle


def enrol(ask: Ask) -> Done:
    """Somebody who was invited asks to join."""
    return enrolment.enrol(ask.folder, ask.body, datetime.now(UTC), ask.permit)


def renew(ask: Ask) -> Done:
    """A site asks for its next certificate."""
    return enrolment.renew(ask.folder, ask.caller.name, ask.body, ask.permit)


def collect(ask: Ask) -> Done:
    """Somebody who has asked wants to know what became of it."""
    return enrolment.collect(ask.folder, ask.body, ask.permit)


def requests(ask: Ask) -> Done:
    """Who waits to be approved."""
    ask.permit()
    return enrolment.requests(ask.folder)


def publish(ask: Ask) -> Done:
    """The administrator has a newer roster."""
    return publishing.publish(ask.folder, ask.body, ask.permit)


def roster(ask: Ask) -> Done:
    """A site wants to know whether there is a newer roster."""
    ask.permit()
    return publishing.newer(ask.folder, ask.body)


VERBS: Mapping[str, Handler] = {
    "enrol": told(enrol),
    "renew": told(renew),
    "collect": told(collect),
    "requests": told(requests),
    "publish": told(publish),
    "roster": told(roster),
}
