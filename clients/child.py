"""What a site's training processes tell the light process that holds the session."""

from collections.abc import Mapping
from dataclasses import dataclass

from clients.failures import LINES, Failure
from hansa.records import Part


class ChildDied(RuntimeError):
    """They were ended, since what they did is no longer wanted."""


class ChildFailed(RuntimeError):
    """They could not do what they were asked; code and text may leave the site."""

    def __init__(self, code: Failure) -> None:
        super().__init__(LINES[code])
        self.code = code


@dataclass(frozen=True)
class Ready:
    """What a started group has found."""

    layout: str  # digest
    strategy: str  # digest
    parts: Mapping[str, Part]  # of an update, in their order in an upload
    counters: int  # integers that follow them
    # Names and shapes of the site's metric sums, if it was asked for them.
    sums: tuple[tuple[str, tuple[int, ...]], ...]
    rows: int  # of training, if the app wants differential privacy
    groups: int | None  # whose they are; None: no id says it
