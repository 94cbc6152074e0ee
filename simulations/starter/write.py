"""Writes a user's app: from the files of `app`, and a [data] table for made-up rows or the user's own."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hansa.appfiles import FEDERATION
from hansa.config import load
from hansa.errors import UserError
from hansa.folders import made
from hansa.tables import A_NAME, is_name
from simulations.configured import federation_of
from simulations.starter.example import SITES, write_example
from simulations.starter.proposal import Proposal, propose
from simulations.tune import tuned_at_once, written

HERE = Path(__file__).parent
DEFAULT_SITES, LEAST = 3, 10  # simulated sites; rows that each of them gets at least
QUICK = 50_000  # rows up to which [privacy] is found at once
DEALT = """
# `hansa simulate`: the rows are dealt to simulated sites, here at random. Uneven sites instead, by alpha (small: very):
#partition = {{ name = "dirichlet", sites = {sites}, alpha = 0.5 }}
[simulation]
partition = {{ name = "iid", sites = {sites} }}
"""
NAMED = """
# `hansa simulate`: the sites, whose names take the place of {{site}} above.
[simulation]
sites = {sites}
"""


def init(folder: Path, csv: Path | None, target: str | None, sites: int | None, say: Callable[[str], None]) -> None:
    """Writes an app that can be simulated at once.

    Args:
        folder: a new one; its name is the app's.
        csv: the user's rows; None: made-up ones are written.
        target: the column that is to be predicted; None: guess.
        sites: to which the rows are dealt in a simulation; None: DEFAULT_SITES.
        say: shows a line.

    Raises:
        UserError: the folder is there, or the CSV will not do. Nothing is written then.
    """
    name = folder.resolve().name
    if folder.exists():
        raise UserError(f"{folder} is there already; remove it, or choose another name")
    if not is_name(name):
        raise UserError(f"{folder}: the name of an app is {A_NAME}")
    if csv is None and (target is not None or sites is not None):
        raise UserError(f"--{'sites' if target is None else 'target'} is about the rows of --csv; give that as well")
    with made(folder) as at:
        if csv is None:
            write_example(at / "data")
            found = propose(at / "data" / f"{SITES[0]}.csv", "ill")
            _write(at, name, found, "data/{site}.csv", NAMED.format(sites=json.dumps(SITES)))
        else:
            found = propose(csv, target)
            path = Path(os.path.relpath(csv.resolve(), folder.resolve())).as_posix()
            _write(at, name, found, path, DEALT.format(sites=_checked(csv, found, sites)))
        at.chmod(0o755)  # what was made in secret is nobody's secret
        federation = federation_of(load(at / FEDERATION))  # reads the rows, so that what is wrong is said now
        for source in federation.sources.values():
            if source is not None:
                source.split("train")
        table = tuned_at_once(federation) if found.rows <= QUICK else None
        if table is not None:
            written(at / FEDERATION, table)
    for line in _told(folder, csv, found):
        say(line)
    if table is None:
        say(f"before hansa run: hansa tune clip {folder} --write, which finds what secure aggregation needs")


def data_table(found: Proposal, csv: str) -> str:
    """[data] as text."""
    lines = [
        "",
        "# Where the rows are ({site} in a path is the site's name), and what their columns mean. Proposed from the",
    ]
    lines += ["# file: read it over. At a site [data] of its own site.toml counts, and this one does not.", "[data]"]
    lines += [f"csv = {_toml(csv)}"]
    if found.separator != ",":
        lines.append(f"separator = {_toml(found.separator)}")
    lines.append(f"target = {_toml(found.target)}  # the column that is to be predicted")
    kind = f"classes = {_toml(found.classes)}" if found.classes else 'target_type = "number"'
    lines += [kind, "# Numbers, unless they stand in [data.categories] below."]
    lines += ["features = [", *(f"    {_toml(one)}," for one in found.features), "]"]
    lines += [f"# Left out: {_comment(one)}, {why}." for one, why in found.left_out.items()]
    if found.na:
        lines.append(f'na = {_toml(found.na)}  # what means "missing", besides an empty value')
    if found.missing:
        lines.append('missing = "mean"  # of the training rows; or "drop" the row, or "error"')
    lines.append("standardize = true  # each column by mean and deviation of the training rows")
    by = "" if found.by is None else f", by = {_toml(found.by)}"
    lines.append(
        f"split = {{ test = 0.25{by} }}  # the share of test rows" + (", all rows of one together" if by else "")
    )
    if found.categories:
        lines += ["", "# Each value becomes an input of 0 and 1; all sites must list the same.", "[data.categories]"]
        lines += [f"{_key(one)} = {_toml(values)}" for one, values in found.categories.items()]
    return "\n".join([*lines, ""])


def _write(at: Path, name: str, found: Proposal, csv: str, simulation: str) -> None:
    """The files of an app whose rows are at a path relative to it."""
    shutil.copytree(HERE / "app", at, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("README.md", FEDERATION, "pyproject.toml"):
        (at / file).write_text((at / file).read_text().replace("starter", name, 1))
    with (at / FEDERATION).open("a", encoding="utf-8") as toml:
        toml.write(data_table(found, csv) + simulation)
    inputs = sum(len(found.categories.get(one, "1")) for one in found.features)
    constants: dict[str, Any] = {
        "INPUTS": inputs,
        "OUTPUTS": 1 if len(found.classes or ()) <= 2 else len(found.classes or ()),
    }
    if not found.classes:
        shutil.copy(HERE / "regression" / "task.py", at)
        constants["MEAN, DEVIATION"] = f"{found.mean:.6g}, {found.deviation:.6g}"
    task = (at / "task.py").read_text()
    for constant, value in constants.items():
        task = re.sub(f"(?m)^{constant} = .*", f"{constant} = {value}", task)
    (at / "task.py").write_text(task)


def _checked(csv: Path, found: Proposal, sites: int | None) -> int:
    """How many sites the rows are dealt to."""
    wanted, most = DEFAULT_SITES if sites is None else sites, found.rows // LEAST
    if wanted < 1:
        raise UserError(f"--sites {wanted}: give 1 or more")
    if wanted > most:
        mend = f"set --sites to {most} or fewer" if most else "give more rows"
        raise UserError(f"--sites {wanted}: {csv} has {found.rows} rows, and a site gets {LEAST} or more; {mend}")
    return wanted


def _told(folder: Path, csv: Path | None, found: Proposal) -> Iterator[str]:
    """What was found, and what comes next."""
    if csv is not None:
        kinds = f"{len(found.classes)} classes" if found.classes else "a number"
        numbers = len(found.features) - len(found.categories)
        yield f"{csv}: {found.rows} rows"
        yield f"target: {found.target}, {kinds} ({found.said})"
        yield f"features: {_some(numbers, 'number')}, {_some(len(found.categories), 'category', 'categories')}"
        yield from (f"left out: {name}, {why}" for name, why in found.left_out.items())
        yield from () if found.by is None else [f"rows with one {found.by} stay together when test rows are drawn"]
    yield f"written: {folder}; next: cd {folder} && hansa simulate"


def _some(n: int, one: str, more: str = "") -> str:
    return f"{n} {one if n == 1 else more or one + 's'}"


def _toml(value: Any) -> str:
    """A text, a number or a list of them."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _comment(name: str) -> str:
    """A column's name on one line."""
    return name if name.isprintable() else _toml(name)
