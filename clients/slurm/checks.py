"""What `hansa site doctor` finds of a site behind a Slurm queue, and what `hansa site slurm-script` prints."""

from collections.abc import Iterator
from pathlib import Path

from clients.finding import Finding, mend, ok
from clients.sitefile import SiteFile, load_site_file
from clients.slurm import commands
from clients.slurm.script import TEMPLATE, batch_script
from hansa.errors import UserError
from hansa.startup import SITE_FILE

RUN = "RUN"  # for a run's id


def look_at_slurm(file: SiteFile, folder: Path) -> Iterator[Finding]:
    """Whether a job's script can be made, and whether the cluster would take it."""
    if file.training.mode != "slurm":
        return
    try:
        commands.test(batch_script(file, folder, RUN))
    except UserError as error:
        yield from (mend(f"[slurm]: {line}") for line in error.problems)
    else:
        yield ok(
            f"[slurm]: sbatch --test-only takes the job of a run, {file.training.nodes} nodes for {file.slurm.time}"
        )


def printed(folder: Path) -> str:
    """The script that would be submitted.

    Raises:
        UserError: there is none.
    """
    folder = folder.absolute()
    file = load_site_file(folder / SITE_FILE)
    if file.training.mode != "slurm":
        raise UserError(f'{folder / SITE_FILE}: [training] mode is not "slurm"; see docs/operate-a-site.md')
    return batch_script(file, folder, RUN)


def template() -> str:
    """The script with its places not filled in, for a site's own."""
    return TEMPLATE.read_text()
