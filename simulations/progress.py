"""Shows a run as it goes: a bar on a terminal, a line a round elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from server.events import Event, Note, RoundEnded, RoundStarted, Scored, Values


class ProgressBar:
    """A listener to one run of a number of rounds; use it as a context."""

    def __init__(self, title: str, rounds: int, console: Console | None = None) -> None:
        self.title, self.rounds = title, rounds
        self.console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[said]}"), console=self.console)
        self.row = self.bar.add_task(title, total=rounds, said="")
        self.said = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        match event:
            case RoundStarted(plan=plan):
                self.bar.update(self.row, completed=min(plan.round - 1, self.rounds))
            case Scored(split="valid", scope="all", values=values):
                self.said = as_text(values)
                self.bar.update(self.row, said=self.said)
            case RoundEnded(plan=plan, aggregate=result) if plan.kind == "train":
                self.bar.update(self.row, completed=plan.round)
                if not self.console.is_terminal:
                    line = f"{self.title}: round {plan.round}/{self.rounds}, {len(result.sites)} sites"
                    self.console.print(line, highlight=False)
            case Note(round=0, level="info", text=text):
                self.console.print(text, highlight=False, markup=False, soft_wrap=True)
            case Note(level="warning", text=text):
                self.console.print(f"warning: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def as_text(values: Values) -> str:
    """Metric values in one line."""
    return "  ".join(f"{name} {'undefined' if one is None else format(one, '.4g')}" for name, one in values.items())
