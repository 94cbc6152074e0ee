"""Enters a run's events into the run store, each round in one transaction."""

from server.events import Event, Note, RoundEnded, RoundStarted, Scored
from server.store import Metric, Round, Store


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
