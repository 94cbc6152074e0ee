"""What a site's half of secure aggregation stands on in a run: its keys, its policy, what it remembers."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clients.audit import AUDIT, opened_in
from clients.past import Remembered
from clients.sitefile import PolicyTable
from clients.sitefolder import SiteFolder
from clients.sumrules import Said
from hansa.roster import Roster
from hansa.wire.link_pb2 import Plan
from privacy.secagg.keystream import Keystream, fastest


@dataclass(frozen=True)
class Ground:
    """What the attempts of a run stand on at a site.

    Args:
        run: its id.
        site: the site's name.
        key: by which it signs.
        roster: the consortium's, as it is pinned here.
        policy: what the site asks of them.
        said: what the admitted app's federation.toml says of them.
        past: what it remembers.
        note: adds a line to the audit file; what cannot be noted is not done.
        say: writes a line to the site's log.
        stream: how masks are made.
        staged: whether memory of a version lies here.
        random: so many bytes.
        coins: 32 bytes from which an update to a plan is rounded, never twice the same.
    """

    run: str
    site: str
    key: Ed25519PrivateKey = field(repr=False)
    roster: Roster
    policy: PolicyTable
    said: Said
    past: Remembered
    note: Callable[..., None]
    say: Callable[[str], None]
    stream: Keystream
    staged: Callable[[str], bool]
    random: Callable[[int], bytes] = os.urandom
    coins: Callable[[Plan], bytes] = lambda plan: os.urandom(32)

    def held(self, version: str) -> str | None:
        """Where the memory of a version lies, of the two from which this site may be asked to start; None: of no such.

        A round in which it gave nothing staged nothing: what was there before counts on, by the round's name.
        """
        start = self.past.start
        if version == start.version and version:
            return version if self.staged(version) else start.held
        return start.held if version == start.base else None


def ground_of(
    folder: SiteFolder, said: Said, run: str, note: Callable[..., None], say: Callable[[str], None]
) -> Ground:
    """What a site's folder has for a run.

    Raises:
        UserError: what the site remembers of the run cannot be read, or is not all of it.
    """
    past = Remembered(folder.path / "secure", run, said.text, opened_in(folder.path / AUDIT, run))
    memory = folder.path / "memory" / run

    def staged(version: str) -> bool:
        return (memory / f"{version}.safetensors").is_file()

    who = run, folder.name, folder.sign_key, folder.roster, folder.file.policy
    return Ground(*who, said, past, note, say, fastest(time.perf_counter), staged)
