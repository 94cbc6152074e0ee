"""What `hansa simulate` does."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from hansa.blame import own_code
from hansa.config import Config, load
from hansa.console import say
from hansa.errors import UserError
from hansa.metrics import mean_loss
from hansa.task import Site, Task, collate, output_of, sized
from hansa.workbench import new_model
from server.launch import new_run
from server.store import FILE, Store
from simulations.config import SimulationTable
from simulations.configured import federation_of
from simulations.federation import Federation, Simulation
from simulations.history import History
from simulations.privacy import told
from simulations.progress import ProgressBar
from simulations.report import as_rich, comparison


def simulate_file(path: Path, *, resume: bool, run: str | None, overrides: Sequence[str], dry_run: bool) -> None:
    """Runs what a federation.toml describes, shows it as it goes, prints the test metrics.

    Raises:
        UserError: bad input; `hansa.cli` prints it.
    """
    config = load(path, overrides)
    federation, console = federation_of(config), Console()
    with own_code(type(federation.task), type(federation.strategy)):
        try_model(federation)
        if dry_run:
            check(federation, console)
        else:
            _run(config, federation, console, run, resume=resume)


def _run(config: Config, federation: Federation, console: Console, run: str | None, *, resume: bool) -> None:
    runs = config.folder / config.table("simulation", SimulationTable).runs
    name = _which(runs, run) if resume else run or new_run(federation.name)
    history = run_shown(federation, runs, name, resume=resume)
    show(history, federation, console)
    say(console, f"model and metrics: {runs / name}")


def run_shown(federation: Federation, runs: Path, run: str, *, resume: bool = False) -> History:
    """A run with a progress bar, and what to do when it is interrupted."""
    title = type(federation.strategy).__name__
    try:
        with ProgressBar(title, federation.rounds.rounds) as bar:
            return federation.run(runs, run, resume=resume, listeners=[bar])
    except KeyboardInterrupt:
        say(Console(stderr=True), f"interrupted; go on with --resume --run {run}")
        raise


def show(history: History, federation: Federation, console: Console) -> None:
    """The test metrics of a run, by site and together."""
    for line in told(history.privacy):
        say(console, line)
    names = dict.fromkeys(name for sums in history.test.values() for name in sums if name != "loss")
    if not names:
        say(console, "no test rows: the model was not tested")
        return
    frame = comparison({type(federation.strategy).__name__: history.test}, tuple(names))
    for name in names:
        console.print(as_rich(frame, name, f"test {name}, model of round {history.round}"))


def check(federation: Federation, console: Console) -> None:
    """A dry run: every site's rows are read and counted."""
    for name, source in federation.sources.items():
        site = Site(name, federation.seed, source)
        train, test = sized(federation.task.train_data(site), "train_data"), federation.task.test_data(site)
        say(console, f"{name}: {len(train)} training rows, {len(test) if test is not None else 0} test rows")
    with tempfile.TemporaryDirectory() as scratch:
        for line in told(Simulation(federation, Path(scratch), []).promised):
            say(console, line)
    say(console, f"ok: {federation.rounds.rounds} rounds, {len(federation.sources)} sites; nothing was trained")


def try_model(federation: Federation) -> None:
    """Gives the model two rows of a site, where rows, batches and model meet for the first time.

    Raises:
        UserError: the model does not take them.
    """
    task = federation.task
    sources = [(name, source) for name, source in federation.sources.items() if source is not None]
    if not sources or any(getattr(type(task), hook) is not getattr(Task, hook) for hook in ("train_data", "batches")):
        return
    name, source = sources[0]
    rows = task.train_data(Site(name, federation.seed, source))
    if not len(rows):
        return
    batch = collate(rows, [0, len(rows) - 1])
    model = new_model(task).eval()
    try:
        with torch.no_grad():
            mean_loss(task.loss(*output_of(task, model, batch)))
    except UserError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        shape = list(batch[0].shape[1:]) if isinstance(batch[0], torch.Tensor) else "no tensor"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        line = f"task {type(task).__name__}: its model and loss do not take the rows, inputs of shape {shape}: {reason}"
        raise UserError(f"{line}; fit the model to the data, or the other way round") from error


def _which(runs: Path, run: str | None) -> str:
    if not (runs / FILE).is_file():
        raise UserError(f"{runs}: there are no runs yet, so nothing to resume; run without --resume")
    found = run or Store(runs / FILE).latest()
    if found is None:
        raise UserError(f"{runs}: no run was interrupted, so nothing to resume; run without --resume")
    return found
