"""Reads a site's SQL rows as they stand. No message shows a part of the URL, which may hold a password."""

from pathlib import Path
from urllib.parse import quote, quote_plus

import pandas as pd
import sqlalchemy
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from clients.datatable import DataTable
from clients.reading import Unfit, check_unique, locate, one_line
from hansa.errors import UserError


def read_sql(table: DataTable, text: str, base: Path, site: str) -> tuple[str, pd.DataFrame]:
    """Where the rows are, in words, and the rows.

    The traceback is cut at each error (`from None`): its frames and the driver's words may hold the password.

    Raises:
        UserError: the URL or the query cannot be used; Unfit, without the rows' values, where the query fails.
    """
    url = _url(text, base, site)
    where = f"[data] sql ({url.drivername})"
    statement = sqlalchemy.text(table.query or "")
    parameters = set(statement.compile().params)
    if parameters - {"site"}:
        raise UserError(f"[data] query: :{min(parameters - {'site'})} is unknown; only :site is filled in")
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            result = connection.execute(statement, dict.fromkeys(parameters, site))
            names, rows = list(result.keys()), [tuple(row) for row in result]
    except ImportError as error:
        raise UserError(f"{where}: its driver is not installed ({one_line(error)}); install it with pip") from None
    except (SQLAlchemyError, OSError, ValueError, TypeError) as error:
        reason = _without_secrets(one_line(getattr(error, "orig", None) or error), url)
        mend = "correct sql or query"
        raise Unfit((f"{where}: the query failed ({reason}); {mend}", f"{where}: the query failed; {mend}")) from None
    check_unique(where, names)
    return where, pd.DataFrame.from_records(rows, columns=names, coerce_float=True)


def _url(text: str, base: Path, site: str) -> URL:
    """The URL, an SQLite file in it found from `base`; no error shows a part of it."""
    try:
        url = make_url(text.replace("{site}", site))
        if "@" in (url.host or ""):
            raise ValueError
    except (ArgumentError, ValueError):
        raise UserError(
            "[data] sql: this is no SQLAlchemy URL, dialect://user:password@host/database; "
            "write special characters of the password as %40 (@), %3A (:), %2F (/)"
        ) from None
    if url.get_backend_name() == "sqlite" and url.database and not url.database.startswith((":memory:", "file:")):
        url = url.set(database=str(locate(url.database, base, site)))
    return url


def _without_secrets(text: str, url: URL) -> str:
    values = [url.password or ""]
    for one in url.query.values():
        values += [one] if isinstance(one, str) else one
    for secret in sorted(
        {f(str(v)) for v in values if v for f in (str, quote, quote_plus, repr)}, key=len, reverse=True
    ):
        text = text.replace(secret, "***")
    return text
