"""Results side by side: a table on the terminal, and a folder to keep."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table

from hansa.files import write_atomically
from hansa.metrics import Sums, total, value
from simulations.history import curve_of

POOLED = "all patients"


def comparison(methods: Mapping[str, Mapping[str, Sums]], metrics: tuple[str, ...]) -> pd.DataFrame:
    """Test metrics by method (rows) and site (columns: site, metric), and over all sites' rows together.

    NaN where a metric is undefined, such as the AUC of one class.
    """
    rows = {}
    for method, sites in methods.items():
        by_site = {**sites, POOLED: total(sites.values())}
        rows[method] = {
            (site, name): value(sums[name]) if name in sums else None
            for site, sums in by_site.items()
            for name in metrics
        }
    return pd.DataFrame.from_dict(rows, orient="index").astype(float)


def as_rich(frame: pd.DataFrame, metric: str, title: str) -> Table:
    """One metric of a comparison for the terminal, in per cent."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    one = frame.xs(metric, axis="columns", level=1)
    for site in one.columns:
        table.add_column(str(site), justify="right")
    for method, row in one.iterrows():
        table.add_row(str(method), *map(_percent, row))
    return table


def write_report(folder: Path, title: str, frame: pd.DataFrame, runs: Mapping[str, pd.DataFrame], note: str) -> None:
    """Writes report.md, table.csv, curves.png and metrics.parquet into a folder.

    Args:
        folder: made if it is not there.
        title: of the report.
        frame: what `comparison` made.
        runs: by method, all metrics of its run (see `History.frame`).
        note: a paragraph on how to read the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flat = frame.copy()
    flat.columns = pd.Index(_heads(frame))
    write_atomically(folder / "table.csv", flat.to_csv(index_label="method").encode())
    metrics = pd.concat([one.assign(method=name) for name, one in runs.items()])
    write_atomically(folder / "metrics.parquet", metrics.to_parquet(index=False))
    curves(runs).savefig(folder / "curves.png", dpi=120)
    lines = [f"# {title}", "", note, "", *_markdown(frame), "", "![Validation by round](curves.png)", ""]
    write_atomically(folder / "report.md", "\n".join(lines).encode())


def curves(runs: Mapping[str, pd.DataFrame]) -> Figure:
    """Validation loss and accuracy by round, a line a method."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for method, metrics in runs.items():
            curve = curve_of(metrics, name)
            axes.plot(curve.index, curve.to_numpy(), marker=".", label=method)
        axes.set(xlabel="round", ylabel=f"validation {name}")
        axes.legend()
    return figure


def _markdown(frame: pd.DataFrame) -> list[str]:
    heads = _heads(frame)
    lines = ["| method | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    return lines + [f"| {method} | {' | '.join(map(_percent, row))} |" for method, row in frame.iterrows()]


def _heads(frame: pd.DataFrame) -> list[str]:
    return [" ".join(map(str, pair)) for pair in frame.columns.to_flat_index()]


def _percent(one: float) -> str:
    return "undefined" if pd.isna(one) else f"{100 * one:.1f}"
