"""Enters a run into the run store: its events, each round in one transaction, and how it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hansa.errors import RunFailed, UserError
from server.events import Event, Note, RoundEnded, RoundStarted, Scored
from server.store import Metric, Round, State, Store


class Recorder:
    """Listens to one run. The sites' metrics are held until their round has ended, and are entered with it."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.run = store, run
        self.held: list[Metric] = []
        self.within = False  # a round

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        match event:
            case RoundStarted():
                self.held, self.within = [], True
            case Scored():
                metrics = [Metric(event.round, event.split, event.scope, *one) for one in event.values.items()]
                if self.within:
                    self.held += metrics
                else:
                    self.store.metrics(self.run, metrics)
            case RoundEnded():
                self.within = False
                self.store.round(self.run, _row(event), self.held)
            case Note(round=number, level=level, text=text):
                self.store.event(self.run, "note", text, round=number, level=level)


def _row(event: RoundEnded) -> Round:
    plan, result = event.plan, event.aggregate
    return Round(
        plan.round,
        plan.kind,
        plan.split,
        event.seconds,
        asked=len(event.asked),
        took_part=len(result.sites),
        dropped=len(result.dropped),
        examples=result.examples,
        void=result.void,
    )


@dataclass
class End:
    """How a run ends when nothing goes wrong; to be set before it does."""

    state: State = State.CRASHED


@contextmanager
def ending(store: Store, run: str) -> Iterator[End]:
    """Gives the run its one terminal state, whatever happens."""
    end = End()
    try:
        yield end
    except SystemExit:
        raise  # a process that is told to end leaves the run as it stands
    except KeyboardInterrupt:
        store.end(run, State.INTERRUPTED, "Ctrl-C")
        raise
    except (UserError, RunFailed) as error:
        store.end(run, State.FAILED, str(error))
        raise
    except BaseException as error:
        store.end(run, State.CRASHED, f"{type(error).__name__}: {error}")
        raise
    store.end(run, end.state)
