"""The ClientApp: a thin adapter between Flower and `clients.participant`. It imports no torch."""

import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.agents.ground import open_ground
from clients.audit import AUDIT, Audit
from clients.child import ChildFailed, Ready
from clients.dial import NODE, SESSIONS
from clients.failures import LINES, Failure
from clients.ground import ground_of
from clients.link import Identity, Invitation, Turned
from clients.participant import Participant
from clients.policy import admit, check_federation, check_protection
from clients.refusals import Refused
from clients.secure import SecureHalf
from clients.sitefolder import SiteFolder, open_site_folder
from clients.spending import LEDGERS, Spending
from clients.sumrules import Said, said_by
from clients.workers.group import Group
from hansa.errors import UserError
from hansa.processes import only_one
from hansa.startup import CA, TLS_CERTIFICATE, TLS_KEY, numbered
from hansa.tables import is_name
from hansa.wire.rules import HERE

PASSING = {HERE, "run", "epoch"}  # why a site was turned away that would be welcome when it is invited again
PATIENCE = 2.0  # seconds that a process gets to end itself after a signal

DELIVERED = "HANSA_DELIVERED"  # where `clients.entry` says into which folder Flower has unpacked the app

app = ClientApp()


class Told(BaseException):
    """A signal has told this process to end."""


@dataclass(frozen=True)
class Answer:
    """What the server is told at the end; it may leave the site."""

    line: str
    code: str = ""  # why the site declines, if it does: it would decline again, were it asked at once


@app.train()
def train(message: Message, context: Context) -> Message:
    """Takes part in one run, from the invitation to the end of the run. It always answers: else Flower's node hangs."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    answer = Answer(LINES[Failure.SITE], Failure.SITE)
    try:
        answer = take_part(invited(message.content), context.node_id)
    except Told:
        answer = Answer("the site was stopped")
    except UserError as error:
        say(f"error: {error}")
    except Exception:
        traceback.print_exc()
    record = ConfigRecord({"line": answer.line, "code": answer.code})
    return Message(RecordDict({"answer": record}), reply_to=message)


def invited(content: RecordDict) -> dict[str, str | int]:
    """The invitation that a message carries.

    Raises:
        UserError: it carries none.
    """
    record = content.config_records.get("invitation")
    if record is None or not {"address", "run", "epoch", "token"} <= set(record):
        raise UserError("the server's message is no invitation; are both ends of one version of hansa?")
    if not is_name(str(record["run"])):  # folders of the site are named by it
        raise UserError("the server's invitation gives no name for a run; are both ends of one version of hansa?")
    return {key: value for key, value in record.items() if isinstance(value, str | int)}


def take_part(invitation: dict[str, str | int], node: int) -> Answer:
    """Takes part in the run of an invitation; how it ended.

    Raises:
        UserError: the site's folder is not in order.
    """
    folder = open_site_folder(Path(os.environ["HANSA_SITE"]), datetime.now(UTC))
    run, audit = str(invitation["run"]), Audit(folder.path / AUDIT)
    with tempfile.TemporaryDirectory(prefix="hansa-app-") as scratch:
        try:
            digest = admit(Path(os.environ[DELIVERED]), folder.file.apps, app_folder := Path(scratch) / "app")
            check_federation(app_folder, folder.file.bounds, own_data=folder.file.data is not None)
            said = said_by(app_folder)
            secure = said.privacy.wants(len(folder.roster.sites))
            check_protection(folder.file.policy, secure)
        except Refused as refused:
            audit.append(run, "refused", code=refused.code)
            say(f"run {run} refused: {refused.detail}")
            return Answer(str(refused), refused.code)
        try:
            with _alone(folder.path, run):
                audit.append(run, "admitted", app=digest, epoch=int(invitation["epoch"]))
                say(f"run {run}: {folder.name} takes part")
                answer = _participant(folder, app_folder, run, invitation, node, said, audit)
                audit.append(run, "ended", line=answer.line)
        except _Twice:
            answer = Answer(f"the site takes part in run {run} already, by another of its nodes", HERE)
        say(f"run {run}: {answer.line}")
        return answer


class _Twice(Exception):
    """A site cannot take part twice."""


@contextmanager
def _alone(folder: Path, run: str) -> Iterator[None]:
    """To be held by the one of a site's nodes that takes part in a run."""
    (locks := folder / "run" / "runs").mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(only_one(locks / f"{run}.lock", ""))
        except UserError:
            raise _Twice from None
        yield


def _participant(
    folder: SiteFolder,
    app_folder: Path,
    run: str,
    told: dict[str, str | int],
    node: int,
    said: Said,
    audit: Audit,
) -> Answer:
    secure = said.privacy.wants(len(folder.roster.sites))

    def invite(ready: Ready | None) -> Invitation:
        address = folder.file.site.session or str(told["address"])
        if server_name:
            address = os.environ.get(SESSIONS, address)
        epoch, token = int(told["epoch"]), str(told["token"])
        found = ("", "", token) if ready is None else (ready.layout, ready.strategy, token, ready.sums)
        return Invitation(address, run, epoch, node, *found)

    def start() -> Group:
        return Group(app_folder, folder.path, run, spool, training, say, ground, secure)

    (folder.path / "logs").mkdir(exist_ok=True)
    spool = folder.path / "spool" / run
    training = folder.file.training
    log = folder.path / "logs" / numbered("training.log", int(os.environ.get(NODE, 1)))
    server_name = str(told["server_name"]) if "server_name" in told else None
    identity = Identity(folder.path / CA, folder.path / TLS_CERTIFICATE, folder.path / TLS_KEY, server_name)
    half = SecureHalf(ground_of(folder, said, run, audit.append, say))
    spending = Spending(folder.path / LEDGERS, run, folder.file, said, audit.append, say)
    unmasked = folder.file.policy.allow_unprotected and not secure
    try:
        with open_ground(folder.path, app_folder, run, spool, log, folder.file, say) as ground:
            bounds = folder.file.bounds
            one = Participant(invite, start, identity, spool, say, bounds, half, unmasked, spending, ground)
            return Answer(one.take_part())
    except ChildFailed as failure:
        return Answer(str(failure), failure.code)
    except Turned as turned:
        return Answer(f"turned away: {turned}", "" if turned.code in PASSING else f"turned_away_{turned.code}")
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def say(line: str) -> None:
    """A line of the site's log."""
    print(line, flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    """The node must get an answer, but may be gone itself: no longer than a moment."""
    for again in (signal.SIGTERM, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)
    watchdog = threading.Timer(PATIENCE, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()
    raise Told
