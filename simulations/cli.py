"""`hansa init`, `hansa simulate` and `hansa demo`."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(help="The app's folder, a new one; its name is the app's.")],
    csv: Annotated[
        Path | None, typer.Option(help="Your rows, UTF-8, names in the first row. [default: made up]")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict. [default: a guess]")] = None,
    sites: Annotated[
        int | None, typer.Option(help="To so many sites a simulation deals the rows. [default: 3]")
    ] = None,
) -> None:
    """Write an app to start from: a task, a federation.toml and what Flower needs."""
    from simulations.starter.write import init

    init(folder, csv, target, sites, typer.echo)


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
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where it puts its consortium and its report. [default: hansa-demo, or the next free number]"
        ),
    ] = None,
) -> None:
    """Four hospitals train one model: FedAvg and FedProx beside local, centralised and majority class."""
    from simulations.demo import run_demo

    run_demo(folder)


tune = typer.Typer(help="Find settings by trial.", rich_markup_mode=None)


@tune.callback()
def _commands() -> None:
    """Makes `clip` a command of its own, and not all there is."""


@tune.command("clip")
def tune_clip(
    app: Annotated[Path, typer.Argument(help="The app's folder, or its federation.toml.")] = Path(),
    bits: Annotated[int | None, typer.Option(help="Of the ring: 32, 24, 20, 16. [default: as the file says]")] = None,
    rounds: Annotated[int | None, typer.Option(help="To simulate. [default: as the file says, at most 10]")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, e.g. --set training.lr=0.1; repeatable.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the table into federation.toml.")] = False,
) -> None:
    """Find what secure aggregation needs ([privacy] clip and max_weight) by simulating the app."""
    from simulations.tune import tune_clip

    tune_clip(app, bits=bits, rounds=rounds, overrides=override or [], write=write, say=typer.echo)
