"""The run store: what every run did, in one SQLite file that several processes may open.

Of a run: its state, its rounds, the metrics of each round, and events in words.
"""

import difflib
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, IntegrityError, ProgrammingError
from sqlalchemy.pool import NullPool, QueuePool

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.runfolder import METRICS

FILE = "hansa.sqlite"  # its name in the folder of runs
FORMAT = 1  # SQLite's user_version

Split = Literal["train", "valid", "test", "server"]
Level = Literal["info", "warning", "error"]


class State(StrEnum):
    """Where a run stands: running, or the one state in which it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED_EARLY = "stopped_early"
    INTERRUPTED = "interrupted"  # Ctrl-C
    FAILED = "failed"  # quorum not met and the like
    CRASHED = "crashed"  # our bug


DONE = (State.FINISHED, State.STOPPED_EARLY)  # nothing is left to resume


@dataclass(frozen=True)
class Round:
    """What came of one plan; numbers of sites unless said otherwise."""

    round: int  # from 1
    kind: Literal["train", "evaluate"]
    split: Literal["valid", "test"]  # on which the plan scored the model that it brought
    seconds: float  # from the plan to the step
    asked: int
    took_part: int
    dropped: int
    examples: int  # rows of training data behind it
    void: str | None = None  # why it does not count


@dataclass(frozen=True)
class Metric:
    """One value of the model that stood after a round; None where undefined, and SQLite keeps a NaN as that too."""

    round: int  # 0: the initial model
    split: Split
    scope: str  # "all", or a site's name
    name: str
    value: float | None


_schema = sa.MetaData()
_runs = sa.Table(
    "runs",
    _schema,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),  # of the state, "" where there is nothing to say
    sa.Column("started", sa.Text, nullable=False),  # UTC, ISO 8601
    sa.Column("ended", sa.Text),
    sa.Column("config", sa.Text, nullable=False),  # TOML as given
    sa.Column("config_digest", sa.Text, nullable=False),  # SHA-256 of it
    sa.Column("seed", sa.Integer, nullable=False),
    sa.Column("version", sa.Text, nullable=False),  # of hansa
    sa.Column("engine", sa.Text, nullable=False),
    sa.Column("threads", sa.Integer, nullable=False),
    sa.Column("hardware", sa.Text, nullable=False),
)
_rounds = sa.Table(
    "rounds",
    _schema,
    sa.Column("run", sa.ForeignKey(_runs.c.run), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("split", sa.Text, primary_key=True),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("asked", sa.Integer, nullable=False),  # sites
    sa.Column("took_part", sa.Integer, nullable=False),
    sa.Column("dropped", sa.Integer, nullable=False),
    sa.Column("examples", sa.Integer, nullable=False),
    sa.Column("void", sa.Text),  # why the round does not count
    sa.Column("entered", sa.Text, nullable=False),  # UTC, ISO 8601
)
_metrics = sa.Table(
    "metrics",
    _schema,
    sa.Column("run", sa.ForeignKey(_runs.c.run), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("split", sa.Text, primary_key=True),
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Float),
)
_events = sa.Table(
    "events",
    _schema,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run", sa.ForeignKey(_runs.c.run), nullable=False, index=True),
    sa.Column("time", sa.Text, nullable=False),  # UTC, ISO 8601
    sa.Column("round", sa.Integer),
    sa.Column("level", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)


class Store:
    """The run store in one file, which is made where there is none.

    Each call is one transaction, durable when it returns.

    Args:
        path: of the file.
        durable: False for a file that nobody keeps.
        held: whether a connection is kept from one transaction to the next, until `close`: a transaction is then one
            write to the disk. Not in a process that forks workers, which SQLite forbids with an open connection.

    Raises:
        UserError: the file is not a run store, cannot be read or written, or knows no such run; in any method.
    """

    def __init__(self, path: Path, *, durable: bool = True, held: bool = False) -> None:
        self.path = path
        url, pool = sa.URL.create("sqlite", database=str(path)), QueuePool if held else NullPool
        self._engine = sa.create_engine(url, poolclass=pool, connect_args={"timeout": 30})
        sa.event.listen(self._engine, "connect", _connected if durable else _connected_to_scratch)
        sa.event.listen(self._engine, "begin", _begin)
        self._make()

    def close(self) -> None:
        """Lets the connection go that is held; the next call makes another."""
        self._engine.dispose()

    def create(self, run: str, *, name: str, config: str, seed: int, engine: str, threads: int, hardware: str) -> None:
        """Enters a new run, which is running from now on.

        Args:
            run: the id, which no other run has.
            name: the federation's.
            config: federation.toml as given.
            seed: from which the run derives every draw.
            engine: what trains, e.g. "loop".
            threads: of torch.
            hardware: its class, e.g. "cpu x86_64"; a resume must find the same engine, threads and hardware.
        """
        row = {
            "run": run,
            "name": name,
            "state": State.RUNNING,
            "reason": "",
            "started": _now(),
            "config": config,
            "config_digest": hashlib.sha256(config.encode()).hexdigest(),
            "seed": seed,
            "version": metadata.version("hansa"),
            "engine": engine,
            "threads": threads,
            "hardware": hardware,
        }
        with self._writing() as db:
            if db.scalar(sa.select(_runs.c.run).filter_by(run=run)):
                raise UserError(f"{self.path}: run {run!r} exists already; resume it, or start one under another id")
            db.execute(sa.insert(_runs).values(row))

    def chose(self, run: str, engine: str) -> None:
        """Enters which engine a run that was to find one itself has taken: a resume takes the same."""
        with self._writing() as db:
            self._state(db, run)
            db.execute(sa.update(_runs).filter_by(run=run).values(engine=engine))

    def reopen(self, run: str, committed: int) -> None:
        """Sets a run going again, and tells it in the events. One that a killed process left running may be reopened.

        Args:
            run: the id.
            committed: the round that it goes on from; what was entered about later ones is taken back.

        Raises:
            UserError: the run is complete.
        """
        with self._writing() as db:
            was = self._state(db, run)
            if was in DONE:
                raise UserError(f"run {run!r} is complete ({was}); nothing is left to resume, start a new run")
            for table in (_rounds, _metrics):
                db.execute(sa.delete(table).where(table.c.run == run, table.c.round > committed))
            db.execute(sa.update(_runs).filter_by(run=run).values(state=State.RUNNING, reason="", ended=None))
            found = "its process had been killed" if was is State.RUNNING else f"it was {was}"
            db.execute(_event(run, "resume", f"resumed after round {committed}; {found}", committed))

    def end(self, run: str, state: State, reason: str = "") -> None:
        """Gives a run its terminal state.

        Raises:
            RuntimeError: it has another one already, or the state is not a terminal one.
        """
        with self._writing() as db:
            now = self._state(db, run)
            if state is State.RUNNING or now not in (State.RUNNING, state):
                raise RuntimeError(f"run {run!r} is {now} and cannot become {state}")
            if now is State.RUNNING:
                db.execute(sa.update(_runs).filter_by(run=run).values(state=state, reason=reason, ended=_now()))
                level: Level = "info" if state in DONE else "error"
                db.execute(_event(run, "end", f"{state}: {reason}" if reason else state, level=level))

    def round(self, run: str, row: Round, metrics: Iterable[Metric] = ()) -> None:
        """Enters a round and the metrics that it brought; what stood in their places is replaced."""
        with self._writing() as db:
            db.execute(_REPLACE_ROUND, {"run": run, "entered": _now("microseconds"), **vars(row)})
            _insert(db, run, metrics)

    def metrics(self, run: str, metrics: Iterable[Metric]) -> None:
        """Enters metrics on their own; all that stood under the same round, split and scope is replaced."""
        with self._writing() as db:
            _insert(db, run, metrics)

    def event(self, run: str, kind: str, text: str, *, round: int | None = None, level: Level = "info") -> None:
        """Enters what happened, in words, under the time of now."""
        with self._writing() as db:
            db.execute(_event(run, kind, text, round, level))

    def entry(self, run: str) -> dict[str, Any]:
        """What `runs` says of one run: its state, and all that a resume must find as it was."""
        with self._reading() as db:
            self._state(db, run)
            return dict(db.execute(sa.select(_runs).filter_by(run=run)).mappings().one())

    def runs(self) -> pd.DataFrame:
        """All runs, the oldest first."""
        return self._frame(sa.select(_runs).order_by(_AGE))

    def rounds(self, run: str) -> pd.DataFrame:
        """The rounds of a run, in the order of their numbers: the fields of `Round`, and when each was entered."""
        r = _rounds.c
        columns = [column for column in r if column.name != "run"]
        return self._frame(
            sa.select(*columns).where(r.run == run).order_by(r.round, r.kind.desc(), r.split.desc()), run
        )

    def frame(self, run: str) -> pd.DataFrame:
        """The metrics of a run in long form: round, split, scope, name, value (float64, NaN where undefined)."""
        m = _metrics.c
        query = sa.select(m.round, m.split, m.scope, m.name, m.value).where(m.run == run)
        frame = self._frame(query.order_by(m.round, m.split, m.scope, m.name), run)
        return frame.astype({"round": "int64", "split": str, "scope": str, "name": str, "value": "float64"})

    def events(self, run: str) -> pd.DataFrame:
        """The events of a run in their order: time, round (nullable), level, kind, text."""
        e = _events.c
        query = sa.select(e.time, e.round, e.level, e.kind, e.text).where(e.run == run).order_by(e.id)
        return self._frame(query, run).astype({"round": "Int64"})

    def export(self, run: str, folder: Path) -> Path:
        """Writes `frame` as metrics.parquet into a folder, whole or not at all; the file's path."""
        path = folder / METRICS
        frame = self.frame(run)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, frame.to_parquet(index=False))
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error}); free disk space or mend the permissions") from error
        return path

    def latest(self) -> str | None:
        """The newest run that may be resumed."""
        with self._reading() as db:
            query = sa.select(_runs.c.run).where(_runs.c.state.not_in(DONE)).order_by(_AGE.desc()).limit(1)
            return db.scalar(query)

    def _frame(self, query: sa.Select[Any], run: str | None = None) -> pd.DataFrame:
        with self._reading() as db:
            if run is not None:
                self._state(db, run)
            rows = db.execute(query)
            return pd.DataFrame(rows.all(), columns=list(rows.keys()))

    def _state(self, db: sa.Connection, run: str) -> State:
        states = {row.run: row.state for row in db.execute(sa.select(_runs.c.run, _runs.c.state))}
        if run not in states:
            near = difflib.get_close_matches(run, states, n=3, cutoff=0.4) or list(states)[-3:]
            there = f"there are {', '.join(near)}" if near else "there are none yet"
            raise UserError(f"there is no run {run}; {there}")
        return State(states[run])

    def _make(self) -> None:
        """Makes the file and its tables where they are missing; two processes may do so at once."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path.parent}: cannot be made ({error.strerror}); choose another folder") from error
        with self._writing() as db:
            version = db.exec_driver_sql("PRAGMA user_version").scalar_one()
            if version not in (0, FORMAT):
                raise UserError(f"{self.path}: another version of Hansa wrote it; use that one, or another folder")
            if version == 0:
                _schema.create_all(db)
                db.exec_driver_sql(f"PRAGMA user_version = {FORMAT}")

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._telling(), self._engine.begin() as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._telling(), self._engine.execution_options(writes=True).begin() as db:
            yield db

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tells in one line what is wrong with the file or the disk."""
        try:
            yield
        except (IntegrityError, ProgrammingError):
            raise  # ours
        except DatabaseError as error:
            said = str(error.orig)
            mend = next((mend for sign, mend in _MENDS.items() if sign in said), "see that the disk is in order")
            raise UserError(f"{self.path}: the run store cannot be used ({said}); {mend}") from error


# Made once: SQLAlchemy takes longer to make a statement than SQLite to carry it out.
_REPLACE_ROUND = sa.insert(_rounds).prefix_with("OR REPLACE")
_PLACE = ("of", "at", "by", "for")  # of a metric: its run, round, split and scope
_CLEAR = sa.delete(_metrics).where(
    *(
        column == sa.bindparam(name)
        for name, column in zip(
            _PLACE, (_metrics.c.run, _metrics.c.round, _metrics.c.split, _metrics.c.scope), strict=True
        )
    )
)
_AGE = sa.literal_column("runs.rowid", sa.Integer)  # runs in the order in which they were created
_MENDS = {
    "not a database": "move that file away, it is not Hansa's",
    "malformed": "restore the file from a backup",
    "full": "free disk space",
    "readonly": "make the file and its folder writable",
    "unable to open": "make the file and its folder writable",
    "locked": "end the process that holds it",
}


def _connected(connection: DBAPIConnection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin` says, not where sqlite3 guesses
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _connected_to_scratch(connection: DBAPIConnection, _: object) -> None:
    _connected(connection, _)
    connection.execute("PRAGMA synchronous = OFF")


def _begin(db: sa.Connection) -> None:
    """A writer takes its lock at once and waits for it; one that took it later would fail instead of waiting."""
    db.exec_driver_sql("BEGIN IMMEDIATE" if db.get_execution_options().get("writes") else "BEGIN")


def _insert(db: sa.Connection, run: str, metrics: Iterable[Metric]) -> None:
    rows = [{"run": run, **vars(metric)} for metric in metrics]
    if rows:
        places = {(row["round"], row["split"], row["scope"]) for row in rows}
        db.execute(_CLEAR, [dict(zip(_PLACE, (run, *place), strict=True)) for place in places])
        db.execute(sa.insert(_metrics), rows)


def _event(run: str, kind: str, text: str, round: int | None = None, level: Level = "info") -> sa.Insert:
    return sa.insert(_events).values(run=run, time=_now(), round=round, level=level, kind=kind, text=text)


def _now(timespec: str = "milliseconds") -> str:
    return datetime.now(UTC).isoformat(timespec=timespec)
