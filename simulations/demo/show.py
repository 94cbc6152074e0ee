"""The demo's course: a consortium of four hospitals deployed on this machine, two runs, baselines, a report."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from clients.report import SiteReport
from hansa.appfiles import FEDERATION, app_digest, app_files
from hansa.config import load
from hansa.console import say
from hansa.errors import RunFailed, UserError
from hansa.metrics import Sums
from server.command import start
from server.launch import new_run
from server.store import FILE, Store
from simulations.baselines import Scores, centralised, local_only, majority
from simulations.configured import federation_of
from simulations.datasets.breast_cancer import BreastCancer
from simulations.demo.consortium import Consortium
from simulations.federation import Federation
from simulations.report import as_rich, comparison, write_report

APP = Path(__file__).parent / "app"
STRATEGIES = {"FedAvg": 'name = "fedavg"', "FedProx": 'name = "fedprox"\nmu = 0.1'}
METRICS = ("accuracy", "auc")
DATA = 'csv = "rows.csv"\ntarget = "malignant"\nstandardize = true\nsplit = { test = 0.25 }\n'
NOTE = (
    "Four processes for four hospitals, each with its own rows, certificate and allow-list; one server. Test accuracy "
    "and AUC in %, by hospital (from the hospitals' own reports) and over all patients. *Local only*: each hospital "
    "alone. *Centralised*: all rows in one place, which privacy forbids. These data are easy: differences are one or "
    "two patients. Under secure aggregation the server has seen sums over three hospitals or more, and no update, no "
    "number of rows and no metric of any one of them."
)


def run(folder: Path) -> None:
    """Ten rounds each of FedAvg and FedProx over TLS, beside what each hospital could do without them.

    Raises:
        UserError: the folder is there already.
        RunFailed: the consortium did not come up, or a run failed; everything is stopped.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already; remove it, or choose another by --folder")
    console = Console()
    apps = {name: write_app(folder / "apps" / name.lower(), keys) for name, keys in STRATEGIES.items()}
    consortium = Consortium(folder / "consortium", list(BreastCancer().sites()))
    write_hospitals(consortium, list(apps.values()))
    say(console, f"a consortium of four hospitals in {folder}; the server sees sums only, by secure aggregation")
    runs = {name: new_run(name.lower()) for name in apps}
    with consortium:
        say(console, "the server and four hospitals are up, over TLS; each hospital has its own rows")
        for name, app in apps.items():
            start(app, consortium.server, name=runs[name], detach=False, console=console)
    say(console, "everything is stopped; now what they could do alone, and with all rows in one place")
    frames = {name: Store(consortium.server / "runs" / FILE).frame(run) for name, run in runs.items()}
    deployed = {
        name: {site: reported(consortium.site(site), run) for site in consortium.sites} for name, run in runs.items()
    }
    frame = comparison({**deployed, **_baselines(simulated(apps["FedAvg"], consortium))}, METRICS)
    for metric in METRICS:
        console.print(as_rich(frame, metric, f"test {metric} in %"))
    write_report(folder / "report", "Four hospitals, one model", frame, frames, NOTE)
    say(console, f"report: {folder / 'report' / 'report.md'}")


def write_app(folder: Path, strategy: str) -> Path:
    """An app's folder: the demo's task and federation.toml, with another [strategy]."""
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    toml = folder / FEDERATION
    toml.write_text(toml.read_text().replace('name = "fedavg"', strategy))
    return folder


def write_hospitals(consortium: Consortium, apps: list[Path]) -> None:
    """Each hospital's rows, and what it allows."""
    digests = json.dumps(sorted({app_digest(app_files(app)) for app in apps}))  # one: they differ in federation.toml
    columns = [str(name).replace(" ", "_") for name in load_breast_cancer().feature_names]
    for site, arrays in BreastCancer().arrays().items():
        rows = pd.concat(
            pd.DataFrame(x.numpy(), columns=columns).assign(malignant=y.numpy())
            for x, y in ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test))
        )
        rows.to_csv(consortium.site(site) / "rows.csv", index=False)
        training = 'device = "cpu"\nthreads = 1\n'
        consortium.write_site(site, {"apps": f"allowed = {digests}\n", "data": DATA, "training": training})


def reported(site: Path, run: str) -> Sums:
    """What a hospital measured on its test rows, from its own report."""
    for line in SiteReport(site / "reports" / run).lines():
        if line["split"] == "test":
            sums = {name.removeprefix("test/"): torch.tensor(one) for name, one in line["sums"].items()}
            return {name: one.double() for name, one in sums.items()}
    raise RunFailed(f"{site.name} has no report of run {run}")


def simulated(app: Path, consortium: Consortium) -> Federation:
    """The same federation for the baselines, on the hospitals' own files."""
    rows = str(consortium.folder.resolve() / "sites" / "{site}" / "rows.csv")
    return federation_of(load(app / FEDERATION, [f"data.csv={json.dumps(rows)}"]))


def _baselines(federation: Federation) -> Mapping[str, Scores]:
    return {
        "local only": local_only(federation),
        "centralised": centralised(federation),
        "majority class": majority(federation),
    }
