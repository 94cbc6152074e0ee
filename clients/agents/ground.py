"""The ground of a site's run, as [training] mode says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from clients.agents.head import Head
from clients.sitefile import SiteFile
from clients.slurm.ground import ensure_key, queued
from clients.workers.ground import Ground, Here
from hansa.address import split


@contextmanager
def open_ground(
    folder: Path,
    app: Path,
    run: str,
    spool: Path,
    log: Path,
    file: SiteFile,
    say: Callable[[str], None],
) -> Iterator[Ground]:
    """Where the ranks of a run are started; to be held while it lasts.

    Args:
        folder: the site's.
        app: the folder of the admitted app.
        run: the run's id.
        spool: the run's folder.
        log: the file that gets what ranks of this machine write.
        file: site.toml.
        say: writes a line to the site's log.

    Raises:
        UserError: the site's agents cannot be listened for, or no job be made for them.
    """
    training = file.training
    if training.listen is None:
        yield Here(log, training)
        return
    if training.mode == "slurm":
        ensure_key(folder, file.site.name, datetime.now(UTC))
    with Head(folder, app, run, spool, training, split(training.listen), say) as head:
        if training.mode == "slurm":
            with queued(head, file, folder.absolute(), run, say) as queue:
                yield queue
        else:
            yield head
