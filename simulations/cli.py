"""`hansa simulate` and `hansa demo`."""

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    file: Annotated[Path, typer.Argument(help="The federation.toml to run.")] = Path("federation.toml"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run that was interrupted.")] = False,
    run: Annotated[str | None, typer.Option(help="The run's id: to name a new run, or the one to resume.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, e.g. --set training.lr=0.1; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, read the data, train nothing.")] = False,
) -> None:
    """Run a federation on this machine."""
    from simulations.command import simulate_file

    simulate_file(file, resume=resume, run=run, overrides=override or [], dry_run=dry_run)


def demo(
    folder: Annotated[Path, typer.Option(help="Where the demo puts its data, its runs and its report.")] = Path(
        "hansa-demo"
    ),
) -> None:
    """Four hospitals train one model: FedAvg and FedProx beside local, centralised and majority class."""
    from simulations.demo import run_demo

    run_demo(folder)
