"""A site's light process without Flower: it takes part in a run by an invitation.

Its rounding follows the simulation's coins, and it may kill itself in a step: neither can be asked of the product.
What must stay secret is written into a file of its own, to be looked for elsewhere.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL

from clients.audit import Audit
from clients.child import Ready
from clients.ground import ground_of
from clients.link import Identity, Invitation
from clients.participant import Participant
from clients.rounding import Shapes
from clients.secure import SecureHalf
from clients.sitefolder import open_site_folder
from clients.spending import LEDGERS, Spending
from clients.sumrules import said_by
from clients.workers.ground import Here
from clients.workers.group import Group
from hansa.records import Part
from hansa.startup import CA, TLS_CERTIFICATE, TLS_KEY
from hansa.wire.link_pb2 import Plan, Result, Secure, SiteFrame


class Mortal(SecureHalf):
    """Kills its process in a step of some rounds, once; `secrets` gets what goes under masks."""

    dies: Mapping[str, str]
    secrets: Path

    def _die(self, plan: Plan | None, step: str) -> None:
        mark = self.secrets.with_suffix(f".{step}")
        if plan and plan.kind == "train" and self.dies.get(str(plan.round)) == step and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), SIGKILL)

    def begin(self, plan: Plan, parts: Mapping[str, Part], sums: Shapes) -> tuple[SiteFrame, bool]:
        self._die(plan, "advertise")
        return super().begin(plan, parts, sums)

    def hear(self, message: Secure) -> SiteFrame | None:
        self._die(self._hand.plan if self._hand else None, message.step)
        return super().hear(message)

    def take(self, plan: Plan, result: Result, parts: Mapping[str, Part], upload: Path) -> None:
        if plan.kind == "train":
            with self.secrets.open("a") as file:
                file.write(f"{result.upload.data[:64].hex()}\n")
        super().take(plan, result, parts, upload)

    def mask(self, file: Path, inline: int) -> tuple[SiteFrame, bool] | None:
        self._die(self._hand.plan if self._hand else None, "masked")
        return super().mask(file, inline)


def main() -> None:
    from hansa.seeds import coins

    said = json.loads(sys.argv[1])
    home, app, secrets = Path(said["site"]), Path(said["app"]), Path(said["secrets"])
    folder = open_site_folder(home, datetime.now(UTC))
    told, run = said["invitation"], said["invitation"]["run"]

    def random(size: int) -> bytes:
        drawn = os.urandom(size)
        with secrets.open("a") as file:
            file.write(f"{drawn.hex()}\n")
        return drawn

    ground = ground_of(
        folder, said_by(app), run, Audit(home / "audit.jsonl").append, lambda line: print(line, flush=True)
    )
    rounded = replace(ground, random=random, coins=lambda plan: coins(plan.seed, plan.round, folder.name))
    half = Mortal(rounded)
    half.secrets, half.dies = secrets, said["dies"]
    secure = said_by(app).privacy.wants(len(folder.roster.sites))

    def invite(ready: Ready | None) -> Invitation:
        address, epoch, token = told["address"], told["epoch"], told["token"]
        found = ("", "", token) if ready is None else (ready.layout, ready.strategy, token, ready.sums)
        return Invitation(address, run, epoch, said["node"], *found)

    def start() -> Group:
        (home / "logs").mkdir(exist_ok=True)
        return Group(app, home, run, spool, folder.file.training, ground.say, place, secure)

    place = Here(home / "logs" / "training.log", folder.file.training)
    identity = Identity(home / CA, home / TLS_CERTIFICATE, home / TLS_KEY)
    bounds, spool = folder.file.bounds, home / "spool" / run
    spending = Spending(home / LEDGERS, run, folder.file, said_by(app), ground.note, ground.say)
    site = Participant(invite, start, identity, spool, ground.say, bounds, half, False, spending, place)
    print(site.take_part(), flush=True)


if __name__ == "__main__":
    main()
