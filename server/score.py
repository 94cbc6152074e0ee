"""Scores of the model at the server, on rows that are public."""

from collections.abc import Callable

from hansa.evaluate import EVALUATION_ROWS, evaluate
from hansa.metrics import values
from hansa.records import ServerState
from hansa.task import Task, sized
from hansa.workbench import Workbench
from server.events import Values


def scorer(task: Task, bench: Workbench) -> Callable[[ServerState], Values] | None:
    """Scores a state on the task's server data, which is asked for once; None if there is none."""
    rows = task.server_data()
    if rows is None:
        return None
    sized(rows, "server_data")

    def score(state: ServerState) -> Values:
        model = bench.load(state.params, state.counters, {})
        return values(evaluate(task, model, rows, EVALUATION_ROWS, bench.device))

    return score
