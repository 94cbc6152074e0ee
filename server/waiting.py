"""Sites that are known and wait for their own machines: what they said, and since when. Pure."""

from dataclasses import dataclass

from hansa.wire.link_pb2 import Waiting

WORDS = {  # by what a site says; of its own words none is shown
    "starting": "is starting its training processes",
    "queued": "waits for machines",
}
OTHER = "is not ready to train yet"  # of a newer site
DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Wait:
    """What a site waits for."""

    line: str  # fit to print, after the site's name
    since: float  # seconds of the clock: when it first said so


class Waits:
    """The waits of a run's sites. A wait is one from its first word to readiness, whatever connections come and go."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._lines: dict[str, str] = {}

    def says(self, site: str, said: Waiting, now: float) -> None:
        """A site that is here waits; without a state it waits no longer."""
        if not said.state:
            return self.ready(site)
        self._since.setdefault(site, now)
        self._lines[site] = line_of(said)

    def gone(self, site: str) -> None:
        """Its connection is lost."""
        self._lines.pop(site, None)

    def ready(self, site: str) -> None:
        """It waits no longer."""
        self._lines.pop(site, None)
        self._since.pop(site, None)

    def now(self) -> dict[str, Wait]:
        """Those that are here and wait."""
        lines = dict(self._lines)
        return {site: Wait(line, since) for site, line in lines.items() if (since := self._since.get(site)) is not None}


def line_of(said: Waiting) -> str:
    """A site's wait in words of ours.

    Args:
        said: with the seconds to the expected start, 0 where nobody knows; what makes no sense is not shown.
    """
    words = WORDS.get(said.state, OTHER)
    seconds = said.starts_in
    if not 0 < seconds < 366 * DAY:
        return words
    if seconds >= DAY:
        return f"{words}, expected in {seconds / DAY:.1f} days"
    hours, minutes = divmod(max(1, round(seconds / 60)), 60)
    return f"{words}, expected in {f'{hours} h ' if hours else ''}{minutes} min"
