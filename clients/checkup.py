"""The part of `hansa site doctor` that needs torch, and may die of what it looks at: `python -m clients.checkup WHAT`.

    device NAME     whether a model can be trained there
    data FOLDER     whether the rows of the folder's site.toml can be read

It prints a list of JSON. What stands in the rows is in none of it.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from clients.columns import feature_names, mark_missing
from clients.data import open_source
from clients.datatable import DataTable
from clients.finding import Finding, mend, ok
from clients.reading import check_columns, read, without_values
from clients.sitefile import SiteFile, load_site_file
from hansa.device import choose_device, hardware
from hansa.errors import UserError
from hansa.startup import SITE_FILE

SIDE = 256  # of the matrices that are multiplied


def look_at_device(name: str) -> Iterator[Finding]:
    """Multiplies two matrices on a device."""
    try:
        device = choose_device(name)
        x = torch.full((SIDE, SIDE), 0.5, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad((x @ x).sum(), x)
        right = bool((slope == SIDE).all())
    except UserError as error:
        yield mend(f"[training] {error}")
    except RuntimeError as error:  # a driver that does not fit torch, another program that has the device
        reason = " ".join(str(error).split())[:200]
        yield mend(f'[training] device: "{name}" does not work: {reason}; mend its driver, or set device = "cpu"')
    else:
        room = (
            f", {torch.cuda.mem_get_info(device)[0] / 1e9:.1f} GB of its memory free" if device.type == "cuda" else ""
        )
        line = f"[training] device: {name} is {hardware(device)}{room}"
        yield ok(line) if right else mend(f"{line}; it calculates wrongly, so use another one")


def look_at_data(folder: Path) -> Iterator[Finding]:
    """Reads the rows, as a run would."""
    file = load_site_file(folder / SITE_FILE)
    try:
        yield from _of_images(file, file.data) if file.data and file.data.images else _of_table(file, file.data)
    except UserError as error:
        yield from (mend(f"[data]: {line}") for line in without_values(error))


def _of_table(file: SiteFile, table: DataTable | None) -> Iterator[Finding]:
    if table is None:
        return
    sheet = read(table, file.folder, file.site.name)
    names = list(feature_names(sheet, table))
    check_columns(sheet, names)
    missing = int(mark_missing(sheet, table, names).frame[names].isna().to_numpy().sum())
    rows = f"{len(sheet.frame)} rows, {len(names)} feature columns, {missing} values missing"
    yield ok(f'[data]: {rows} (missing = "{table.missing}"); {_sides(file, table)}')


def _of_images(file: SiteFile, table: DataTable) -> Iterator[Finding]:
    yield ok(f"[data]: images; {_sides(file, table)}")


def _sides(file: SiteFile, table: DataTable) -> str:
    """How many rows train and test; another seed draws others, as many."""
    source = open_source(table, file.folder, file.site.name, seed=0)
    train, test = (len(source.split(name)) for name in ("train", "test"))
    return f"{train} to train on, {test} to test"


def main(what: str, argument: str) -> None:
    """Prints what it finds."""
    warnings.simplefilter("ignore")  # their texts may hold values
    found = look_at_device(argument) if what == "device" else look_at_data(Path(argument))
    print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main(*sys.argv[1:])
