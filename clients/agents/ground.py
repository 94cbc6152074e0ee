"""The ground of a site's run, as [training] mode says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.agents.head import Head
from clients.sitefile import SiteTrainingTable
from clients.workers.ground import Ground, Here
from hansa.address import split


@contextmanager
def open_ground(
    folder: Path,
    app: Path,
    run: str,
    spool: Path,
    log: Path,
    training: SiteTrainingTable,
    say: Callable[[str], None],
) -> Iterator[Ground]:
    """Where the ranks of a run are started; to be held while it lasts.

    Args:
        folder: the site's.
        app: the folder of the admitted app.
        run: the run's id.
        spool: the run's folder.
        log: the file that gets what ranks of this machine write.
        training: of site.toml.
        say: writes a line to the site's log.

    Raises:
        UserError: the site's agents cannot be listened for.
    """
    if training.listen is None:
        yield Here(log, training)
    else:
        with Head(folder, app, run, spool, training, split(training.listen), say) as head:
            yield head
