"""The one way in which an attempt at secure aggregation goes wrong."""

from typing import Literal

Step = Literal["advertise", "share", "receive", "mask", "sign", "unmask"]


class Refused(Exception):
    """Something that the protocol does not allow, in one line that is fit to print: it holds no secret.

    At a site the attempt is over. At the coordinator it is over for the site named, or for all if none is.

    Args:
        step: of the protocol.
        site: whose message, or whose part in it, is at fault; None: the attempt as a whole.
        reason: what is wrong.
    """

    def __init__(self, step: Step, site: str | None, reason: str) -> None:
        where = step if site is None else f"{step}, site {site}"
        super().__init__(f"secure aggregation, {where}: {reason}")
        self.step, self.site, self.reason = step, site, reason
