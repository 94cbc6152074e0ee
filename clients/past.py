"""What a site remembers of its runs under secure aggregation, on disk before a word of it leaves."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hansa.errors import UserError
from hansa.files import write_atomically
from privacy.secagg.agreement import Past

KEPT = 16  # sums of training that are remembered; of evaluations, which are few, all are


@dataclass(frozen=True)
class Start:
    """The newest round of training that this site began: the next one starts from what it staged, or from its base."""

    version: str = ""  # of the memory that it stages
    base: str = ""  # which it was told to start from
    held: str = ""  # and where that memory lies: a round in which a site gave nothing stages nothing


@dataclass(frozen=True)
class Sum:
    """A sum that this site helped to open."""

    model: str  # digest of what it is of
    sites: tuple[str, ...]  # over which it is


@dataclass(frozen=True)
class Memo:
    """All of it.

    Args:
        pasts: of the attempts, by purpose.
        sums: that it helped to open, by purpose, the newest last.
        start: see Start.
        app: what the admitted app says of sums.
    """

    pasts: Mapping[str, Past] = field(default_factory=dict)
    sums: Mapping[str, tuple[Sum, ...]] = field(default_factory=dict)
    start: Start = Start()
    app: str = ""


class Remembered:
    """A run's memo, in a file.

    Args:
        folder: of all runs' files; made with the first.
        run: the run's id.
        app: what the admitted app says of sums.
        opened: the newest round, by purpose, of those that the site's audit file has as opened.

    Raises:
        UserError: the file cannot be read, or is older than the audit file, or of another app. Without it nobody knows
            what this site has helped to open.
    """

    def __init__(self, folder: Path, run: str, app: str = "", opened: Mapping[str, int] | None = None) -> None:
        self.path, self.run = folder / f"{run}.json", run
        try:
            memo = _memo(run, json.loads(self.path.read_bytes())) if self.path.exists() else Memo(app=app)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{self.path}: not what this site had noted of the run; it sits the run out") from error
        self.memo = memo
        if lost := [purpose for purpose, round in (opened or {}).items() if self.of(purpose).answered < round]:
            raise UserError(
                f"{self.path}: the audit file knows of sums ({', '.join(sorted(lost))}) that are not in it; the site "
                "sits the run out"
            )
        if memo.app != app:
            raise UserError(
                f"{self.path}: this run began with another [privacy], [dp] or [rounds] than federation.toml now has; "
                "the site sits the run out"
            )

    def of(self, purpose: str) -> Past:
        """The past of a purpose."""
        return self.memo.pasts.get(purpose) or Past(self.run, purpose)

    def sums(self, purpose: str) -> tuple[Sum, ...]:
        """The sums of a purpose that it helped to open."""
        return self.memo.sums.get(purpose, ())

    @property
    def start(self) -> Start:
        """Of the newest round of training."""
        return self.memo.start

    def put(self, past: Past, start: Start | None = None, opened: Sum | None = None) -> None:
        """Replaces the past of its purpose, and adds what is new; on disk too."""
        memo, purpose = self.memo, past.purpose
        sums = {**memo.sums, purpose: (*self.sums(purpose), opened)[-_kept(purpose) :]} if opened else memo.sums
        self.memo = replace(memo, pasts={**memo.pasts, purpose: past}, sums=sums, start=start or memo.start)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self.path, json.dumps(asdict(self.memo)).encode())


def _kept(purpose: str) -> int:
    return KEPT if purpose.startswith("train") else 1 << 20


def _memo(run: str, said: dict[str, Any]) -> Memo:
    pasts = {purpose: _past(**one) for purpose, one in said["pasts"].items()}
    if any((past.run, past.purpose) != (run, purpose) for purpose, past in pasts.items()):
        raise ValueError("of another run")
    sums = {purpose: tuple(_sum(**one) for one in of) for purpose, of in said["sums"].items()}
    return Memo(pasts, sums, Start(**said["start"]), said["app"])


def _past(opened: list[int], asked: Iterable[str], **rest: Any) -> Past:
    epoch, round, attempt = opened
    return Past(opened=(epoch, round, attempt), asked=tuple(asked), **rest)


def _sum(model: str, sites: Iterable[str]) -> Sum:
    return Sum(model, tuple(sites))
