"""`hansa site doctor`: looks at all that a site needs, and says of each in a line that it is well, or the mend.

What needs torch runs in a process of its own (`clients.checkup`): so the first lines come at once, and a device or a
table that takes a process down is told like anything else.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from signal import Signals

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from clients.agents.checks import look_at_agents
from clients.finding import Finding, mend, ok
from clients.floors import look_at_policy
from clients.sitefile import SiteFile, load_site_file
from clients.sitefolder import check_joined, open_site_folder
from clients.slurm.checks import look_at_slurm
from clients.wayout import look_at_way
from hansa.errors import UserError
from hansa.identity import ends
from hansa.startup import SIGN_KEY, SITE_FILE, SOON, TLS_CERTIFICATE, TLS_KEY

DISTRIBUTION = "hansa"
SHOWN = ("torch", "flwr")  # whose versions are shown; all are looked at
COPIES = 6  # of a model's vector that a run may have on disk: the global one, shared ones, an update, memory twice
LEAST = 1 << 30  # bytes that must be free
LONGEST = 600.0  # seconds that one check may take

Say = Callable[[str], None]


def examine(folder: Path, say: Say) -> bool:
    """Looks at everything, and says what it finds; whether all is well.

    Args:
        folder: the site's.
        say: shows a line.
    """
    good = True
    for finding in _findings(folder.absolute()):
        say(str(finding))
        good = good and finding.good
    return good


def _findings(folder: Path) -> Iterator[Finding]:
    now = datetime.now(UTC)
    yield from look_at_versions()
    try:
        check_joined(folder)
        file = load_site_file(folder / SITE_FILE)
    except UserError as error:
        yield from (mend(line) for line in error.problems)
        return
    yield from look_at_keys(folder, now)
    yield from look_at_way(file, folder)
    yield from _in_a_child(["device", file.training.device], "[training] device")
    yield from look_at_agents(file.training, folder, now)
    yield from look_at_slurm(file, folder)
    yield _disk(folder)
    yield from _data(file)
    yield look_at_apps(file)
    yield from look_at_policy(file.policy)


def look_at_keys(folder: Path, now: datetime) -> Iterator[Finding]:
    """The folder's files, whether they fit together, and how long they are good."""
    for path in (folder / TLS_KEY, folder / SIGN_KEY, *sorted(folder.glob("node*.key"))):
        if path.exists() and path.stat().st_mode & 0o077:
            yield mend(f"{path}: others may read this key; chmod 600 {path}, and renew if somebody has")
    try:
        site = open_site_folder(folder, now)
    except UserError as error:
        yield from (mend(line) for line in error.problems)
        return
    yield ok(f"keys: {site.name} of {site.roster.consortium}, roster of edition {site.roster.edition}")
    until = ends(site.startup.tls.certificate)
    line = f"{TLS_CERTIFICATE}: good until {until:%Y-%m-%d}"
    yield ok(line) if until - now > SOON else mend(f"{line}; hansa site renew {folder}")


def look_at_versions() -> Iterator[Finding]:
    """What is installed, against what this hansa was made for."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    about = metadata.metadata(DISTRIBUTION)
    wanted = about["Requires-Python"] or ""
    wrong = (
        [] if SpecifierSet(wanted).contains(python) else [f"python {python} is not {wanted}; make a new environment"]
    )
    for requirement in map(Requirement, metadata.requires(DISTRIBUTION) or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            wrong += _unmet(requirement)
    yield from (mend(f"versions: {line}") for line in wrong)
    if not wrong:
        found = "".join(f", {name} {metadata.version(name)}" for name in SHOWN)
        yield ok(f"versions: python {python}, hansa {metadata.version(DISTRIBUTION)}{found}")


def _unmet(requirement: Requirement) -> list[str]:
    mend_ = f'pip install "{requirement.name}{requirement.specifier}"'
    try:
        there = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return [f"{requirement.name} is not installed; {mend_}"]
    fits = requirement.specifier.contains(there, prereleases=True)
    return [] if fits else [f"{requirement.name} {there} is not {requirement.specifier}; {mend_}"]


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    line = f"disk: {free / 1e9:.1f} GB free, room for a model of {_count(free // (4 * COPIES))} parameters"
    return ok(line) if free >= LEAST else mend(f"{line}; make room in {folder}, {LEAST / 1e9:.0f} GB at least")


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 10**9 else f"{number / 1e6:.0f} million"


def _data(file: SiteFile) -> Iterator[Finding]:
    if file.data is None:
        yield ok("[data]: none; only apps whose own code finds the rows can run here")
    else:
        yield from _in_a_child(["data", str(file.folder)], "[data]")


def look_at_apps(file: SiteFile) -> Finding:
    """Whether any app may run here."""
    if not file.apps.allowed:
        return mend("[apps]: none is allowed, so no run can be taken part in; add what `hansa digest APP` prints")
    return ok(f"[apps]: {len(file.apps.allowed)} allowed: {', '.join(f'{one[:15]}...' for one in file.apps.allowed)}")


def _in_a_child(arguments: Sequence[str], what: str) -> Iterator[Finding]:
    command = [sys.executable, "-P", "-m", "clients.checkup", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        yield mend(f"{what}: looked at it for {timedelta(seconds=LONGEST)} without an end; is it too slow, or stuck?")
        return
    try:
        found = [Finding(bool(one["good"]), str(one["line"])) for one in json.loads(done.stdout)]
    except (ValueError, TypeError, KeyError):
        how = f"signal {Signals(-done.returncode).name}" if done.returncode < 0 else f"exit code {done.returncode}"
        yield mend(f"{what}: the process that looked at it died ({how}); see to it with {' '.join(command)}")
        return
    yield from found
