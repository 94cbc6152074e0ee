"""The batch script of a run: a template, with the options of sbatch and the agent's command filled in."""

import shlex
import sysconfig
from pathlib import Path

from clients.sitefile import SiteFile
from clients.slurm.config import SlurmTable
from hansa.errors import UserError, reason

TEMPLATE = Path(__file__).with_name("agents.sbatch")
OPTIONS, AGENT = "@OPTIONS@", "@AGENT@"
KEY = "slurm"  # in agents/: which nodes a job gets nobody knows before, so all have one


def batch_script(file: SiteFile, folder: Path, run: str) -> str:
    """The script of a run's job.

    Args:
        file: site.toml, of mode "slurm".
        folder: the site's, absolute; the nodes have it by the same path.
        run: the run's id.

    Raises:
        UserError: the template is not there, or lacks a place to fill in; or a path that sbatch cannot read.
    """
    table = file.slurm
    path = TEMPLATE if table.template is None else file.folder / table.template
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "no text"
        raise UserError(f"site.toml [slurm] template: {path}: {why}") from error
    if not text.startswith("#!"):
        raise UserError(f"site.toml [slurm] template: {path}: its first line must begin with #!")
    lines = text.splitlines()
    if lines.count(OPTIONS) != 1 or text.count(OPTIONS) != 1 or text.count(AGENT) != 1:
        raise UserError(
            f"site.toml [slurm] template: {path}: needs {OPTIONS} once, on a line of its own, and {AGENT} once; "
            f"start from what hansa site slurm-script --template prints"
        )
    commands = [line for line in lines[: lines.index(OPTIONS)] if line.strip() and not line.startswith("#")]
    if commands:  # sbatch(1): options are read up to the first command
        raise UserError(f"site.toml [slurm] template: {path}: {OPTIONS} must stand above the first command")
    options = "\n".join(f"#SBATCH {option}" for option in _options(table, file.training.nodes, folder))
    return text.replace(OPTIONS, options).replace(AGENT, shlex.join(_agent(table, file, folder, run)))


def _options(table: SlurmTable, nodes: int, folder: Path) -> list[str]:
    log = str(folder / "logs" / "slurm-").replace("%", "%%")
    if not log.isprintable() or set(log) & set("\"'\\"):
        raise UserError(f"{folder}: sbatch cannot read a path with quotes, backslashes or control characters; move it")
    named = {
        "partition": table.partition,
        "account": table.account,
        "gpus-per-node": table.gpus_per_node,
        "time": table.time,
    }
    return [
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        *(f"--{name}={value}" for name, value in named.items() if value is not None),
        *table.options,
        f"--signal=B:USR1@{table.signal}",
        "--requeue",
        f'--output="{log}%j.log"',
        "--open-mode=append",
    ]


def _agent(table: SlurmTable, file: SiteFile, folder: Path, run: str) -> list[str]:
    hansa = str(Path(sysconfig.get_path("scripts")) / "hansa")
    where = ["--site", str(folder), "--head", str(file.training.listen)]
    return [hansa, "site", "agent", *where, "--key", KEY, "--run", run, "--patience", f"{table.patience:g}"]
