"""The data that a site's configuration names."""

from pathlib import Path

from clients.datatable import DataTable, DataWarning, SplitTable
from hansa.task import Source

__all__ = ["DataTable", "DataWarning", "SplitTable", "open_source"]


def open_source(table: DataTable, base: Path, site: str, seed: int) -> Source:
    """What `Site.data` reads from. Nothing is read before the first split is asked for; then it is kept.

    Args:
        table: [data].
        base: the folder from which its paths count.
        site: the site's name, for `{site}`.
        seed: the run's; with the site's name it draws the test rows.
    """
    if table.images is not None:
        from clients.images import ImageSource  # here: each start of a training process would wait for both

        return ImageSource(table, base, site, seed)
    from clients.tabular import TableSource

    return TableSource(table, base, site, seed)
