"""`hansa tune clip`: the [privacy] table of an app, found by simulating it, and held against the unmasked run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomlkit

from hansa.appfiles import FEDERATION
from hansa.blame import own_code
from hansa.config import load
from hansa.device import choose_device
from hansa.errors import RunFailed, UserError
from hansa.files import write_atomically
from hansa.metrics import total, value
from hansa.records import Plan, Reply
from hansa.workbench import Workbench
from privacy.config import PrivacyTable
from privacy.secagg.ring import RINGS
from simulations.command import try_model
from simulations.configured import federation_of
from simulations.federation import Federation
from simulations.history import History
from simulations.magnitudes import Magnitudes
from simulations.progress import ProgressBar

QUANTILE, MARGIN = 0.9999, 2.0  # of |value| over sites, rounds and seeds; on top, for rounds and sites not seen
SEEDS = 3
WORSE = 0.2  # points by which a metric may be worse
ROUNDS, FEW = 10, 3  # that are simulated at most; for a first value
COMMENT = (
    "Secure aggregation, on from three sites: the server learns sums only. clip bounds each value of an update,",
    "max_weight is the largest site's rows. When data or training change, hansa tune clip finds them anew.",
)


@dataclass(frozen=True)
class Score:
    """A metric of runs with several seeds."""

    name: str
    points: float  # the mean, times 100
    rows: int  # on which a run was scored


def tune_clip(
    app: Path,
    *,
    bits: int | None,
    rounds: int | None,
    overrides: Sequence[str],
    write: bool,
    say: Callable[[str], None],
) -> None:
    """Finds [privacy] clip and max_weight for an app, prints the table, writes it if asked to.

    Args:
        app: its folder, or its federation.toml.
        bits: of the ring; None: as the file says.
        rounds: to simulate; None: as the file says, but no more than ROUNDS.
        overrides: `table.key=value`.
        write: whether the file gets the table.
        say: shows a line.

    Raises:
        UserError: the app is wrong, or the ring is too coarse for its accuracy.
    """
    if (bits is not None and bits not in RINGS) or (rounds is not None and rounds < 1):
        raise UserError(f"--bits is one of {', '.join(map(str, RINGS))}, and --rounds 1 or more")
    path = app / FEDERATION if app.is_dir() else app
    federation = federation_of(load(path, overrides))
    number = rounds or min(federation.rounds.rounds, ROUNDS)
    federation = replace(federation, rounds=federation.rounds.model_copy(update={"rounds": number}), text="")
    width = bits or federation.privacy.ring_bits
    with own_code(type(federation.task), type(federation.strategy)):
        try_model(federation)
        plain, found = measured(federation, SEEDS)
        table = federation.privacy.model_copy(update={**found, "ring_bits": width})
        check_width(federation, table, plain, say)
    say(f"\n{as_toml(table)}\n")
    if write:
        written(path, table)
        say(f"written to {path}")


def tuned_at_once(federation: Federation) -> PrivacyTable | None:
    """What a few rounds of one seed tell, without a comparison; None if they fail."""
    short = federation.rounds.model_copy(update={"rounds": FEW, "keep": "last", "patience": None})
    try:
        _, found = measured(replace(federation, rounds=short), 1, shown=False)
    except (UserError, RunFailed):
        return None
    return federation.privacy.model_copy(update=found)


def measured(federation: Federation, seeds: int, *, shown: bool = True) -> tuple[list[History], Mapping[str, object]]:
    """Runs without secure aggregation, and the values of [privacy] clip and max_weight that fit them.

    Args:
        federation: to run.
        seeds: number of runs.
        shown: with a progress bar.

    Raises:
        UserError: no site has sent an update.
        RunFailed: too many rounds in a row did not count.
    """
    task, local = federation.task, federation.strategy.local
    bench = Workbench(task, local, federation.seed, choose_device("cpu"))  # whose names are wanted, not its weights
    seen, off = Magnitudes(bench.shared), PrivacyTable(secure=False)
    title = "unmasked" if shown else None
    loop = replace(federation, privacy=off, engine="loop")  # whole answers are watched
    histories = [_run(loop, seed, title, seen.watch) for seed in range(seeds)]
    if not seen.counts:
        raise UserError("no site sent an update, so there is nothing to find a bound by; hansa simulate says why")
    bounds = seen.bounds(QUANTILE, MARGIN)
    clip = bounds if len(bounds) > 1 else next(iter(bounds.values()))
    return histories, {"clip": clip, "max_weight": seen.rows}


def check_width(federation: Federation, table: PrivacyTable, plain: list[History], say: Callable[[str], None]) -> None:
    """Runs the same seeds in the ring, and says what that costs.

    Raises:
        UserError: too much.
    """
    ring = replace(federation, privacy=table.model_copy(update={"secure": True}), engine=plain[0].engine)
    scores = [scored(plain), scored([_run(ring, s, f"{table.ring_bits} bits") for s in range(len(plain))])]
    without, within = scores
    if without is None or within is None:
        say("no test rows, so the accuracy was not compared")
        return
    upwards = federation.rounds.model_copy(update={"monitor": without.name}).upwards
    worse = (without.points - within.points) * (1 if upwards else -1)
    line = f"{without.name} {within.points:.2f} in a ring of {table.ring_bits} bits, {without.points:.2f} without"
    if worse > max(WORSE, 100 / without.rows):
        wider = [one for one in sorted(RINGS) if one > table.ring_bits]
        mend = f"try --bits {wider[0]}" if wider else "set [training] clip_norm, so that updates are more alike in size"
        raise UserError(f"{line}: {worse:.2f} points worse; {mend}")
    say(f"{line} (means over {len(plain)} seeds)")


def scored(histories: list[History]) -> Score | None:
    """Accuracy on all sites' test rows together; the loss where a task has no accuracy; None without test rows."""
    sums = [total(history.test.values()) for history in histories]
    name = "accuracy" if "accuracy" in sums[0] else "loss"
    values = [value(one[name]) if name in one else None for one in sums]
    known = [one for one in values if one is not None]
    if len(known) < len(values):
        return None
    return Score(name, 100 * sum(known) / len(known), int(sums[0][name][1]))


def as_toml(table: PrivacyTable) -> str:
    """The table, as it stands in a file."""
    return tomlkit.dumps(_with(tomlkit.document(), table)).strip()


def written(path: Path, table: PrivacyTable) -> None:
    """Puts the values into a federation.toml, whose other lines and comments stay."""
    document = tomlkit.parse(path.read_bytes().decode("utf-8-sig"))
    write_atomically(path, tomlkit.dumps(_with(document, table)).encode())


def _with(document: tomlkit.TOMLDocument, table: PrivacyTable) -> tomlkit.TOMLDocument:
    if "privacy" not in document:
        new = tomlkit.table()
        for line in COMMENT:
            new.add(tomlkit.comment(line))
        document.add(tomlkit.nl())
        document.add("privacy", new)
    values: dict[str, Any] = {"clip": table.clip, "max_weight": table.max_weight, "ring_bits": table.ring_bits}
    if isinstance(table.clip, Mapping):
        values["clip"] = tomlkit.inline_table()
        values["clip"].update(table.clip)
    there: Any = document["privacy"]
    for key, one in values.items():
        if one != there.get(key):
            there[key] = one
    return document


def _run(
    federation: Federation, seed: int, title: str | None, watch: Callable[[Plan, Reply], None] | None = None
) -> History:
    """One run, shown under a title; its seed is counted from the federation's."""
    one = replace(federation, seed=federation.seed + seed)
    if title is None:
        return one.try_out(watch=watch)
    with ProgressBar(f"{title}, seed {one.seed}", one.rounds.rounds) as bar:
        return one.try_out([bar], watch)
