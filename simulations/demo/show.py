"""The demo's course: data and app written, runs, baselines, table, report."""

import shutil
from pathlib import Path

import pandas as pd
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from hansa.config import load
from simulations.baselines import Scores, centralised, local_only, majority
from simulations.command import new_run, run_shown
from simulations.configured import federation_of
from simulations.datasets.breast_cancer import BreastCancer
from simulations.federation import Federation
from simulations.history import History
from simulations.report import as_rich, comparison, write_report

APP = Path(__file__).parent / "app"
STRATEGIES = {"FedAvg": ["strategy.name=fedavg"], "FedProx": ["strategy.name=fedprox", "strategy.mu=0.1"]}
METRICS = ("accuracy", "auc")


def run(folder: Path) -> None:
    """Four hospitals, ten rounds each of FedAvg and FedProx, beside what each could do without them."""
    console = Console()
    write_app(folder)
    console.print(f"four hospitals with their own data, in {folder}", highlight=False)
    federations = {name: federation_of(load(folder / "federation.toml", keys)) for name, keys in STRATEGIES.items()}
    histories = {name: run_shown(one, folder / "runs", new_run(name.lower())) for name, one in federations.items()}
    frame = comparison({**{n: h.test for n, h in histories.items()}, **_baselines(federations["FedAvg"])}, METRICS)
    for metric in METRICS:
        console.print(as_rich(frame, metric, f"test {metric} in %"))
    _write(folder / "report", frame, histories)
    console.print(f"report: {folder / 'report' / 'report.md'}", highlight=False, soft_wrap=True)


def write_app(folder: Path) -> None:
    """The demo's task, federation.toml, and a CSV a hospital."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for file in ("task.py", "federation.toml"):
        shutil.copyfile(APP / file, folder / file)
    columns = [str(name).replace(" ", "_") for name in load_breast_cancer().feature_names]
    for site, arrays in BreastCancer().arrays().items():
        rows = pd.concat(
            pd.DataFrame(x.numpy(), columns=columns).assign(malignant=y.numpy())
            for x, y in ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test))
        )
        rows.to_csv(folder / "data" / f"{site}.csv", index=False)


def _baselines(federation: Federation) -> dict[str, Scores]:
    return {
        "local only": local_only(federation),
        "centralised": centralised(federation),
        "majority class": majority(federation),
    }


def _write(folder: Path, frame: pd.DataFrame, histories: dict[str, History]) -> None:
    note = (
        "Test accuracy and AUC in %, by hospital and over all patients. Each hospital standardises by its own training "
        "rows. *Centralised* pools all rows, which privacy forbids; it standardises by hospital too."
    )
    write_report(folder, "Four hospitals, one model", frame, histories, note)
