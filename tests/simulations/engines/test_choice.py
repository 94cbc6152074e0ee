"""`engine = "auto"`, and threads: whatever the model, what comes out is what the plain loop gives."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.config import TrainingTable
from hansa.errors import UserError
from hansa.records import Plan
from server.config import RoundsTable
from server.events import Event, Note
from server.store import FILE, Store
from simulations.engines import choice
from simulations.engines.batched import BatchedEngine
from simulations.engines.loop import LoopEngine
from simulations.engines.processes import ProcessesEngine
from simulations.engines.threads import ThreadsEngine
from simulations.federation import Federation
from simulations.history import History
from simulations.partition import numbered
from strategies.base import Strategy
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold
from tests.simulations.engines.zoo import ZOO, Dropped, Made, Mlp


def federation(task: Made, strategy: Strategy | None = None, **facts: Any) -> Federation:
    work = TrainingTable(epochs=1, batch_size=4, lr=0.1, momentum=0.5)
    rounds = RoundsTable(rounds=2, sites_per_round=4)
    sources = dict.fromkeys(numbered(5))
    return Federation(task, strategy or FedAvg(), sources, work, rounds, workers=2, **facts)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are tried however little work there is."""
    monkeypatch.setattr(choice, "LITTLE", 0.0)


def told(what: Federation) -> tuple[History, str]:
    notes: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note) and event.text.startswith("engine "):
            notes.append(event.text)

    history = what.try_out([listen])
    assert len(notes) == 1
    return history, notes[0]


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.usefixtures("tried")
def test_each_model_runs_under_auto_and_equals_the_loop(kind: type[Made]) -> None:
    expected = federation(kind()).try_out().state.params
    history, line = told(federation(kind(), engine="auto"))
    assert line.startswith(f"engine {history.engine}: sites a second, tried on 4: loop ")
    assert ("threads is out: [simulation] engine" in line) == (kind is Dropped)
    if kind is not Dropped or history.engine in ("loop", "processes"):
        assert torch.allclose(history.state.params, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", [FedAvg(), FedProx(mu=0.1), Scaffold(), Ditto()])
def test_threads_give_the_loop_s_bits(strategy: Strategy) -> None:
    what = federation(Mlp(), strategy)
    expected, found = what.try_out(), replace(what, engine="threads").try_out()
    assert torch.equal(found.state.params, expected.state.params)
    assert found.test.keys() == expected.test.keys()


def test_threads_refuse_a_model_that_draws_random_numbers() -> None:
    """One generator serves all threads: which mask a site gets would depend on who asks first."""
    with pytest.raises(UserError, match='"threads": task Dropped draws random numbers while it trains'):
        federation(Dropped(), engine="threads").try_out()


@pytest.mark.usefixtures("tried")
def test_an_engine_that_gives_something_else_or_an_error_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(LoopEngine):
        @classmethod
        def suits(cls, setting: Any) -> bool:
            return True

        def total(self, plan: Plan, asked: Any, present: Any) -> Any:
            total = super().total(plan, asked, present)
            total.totals["delta"].total += 1 << 40
            return total

    class Broken(Off):
        def total(self, plan: Plan, asked: Any, present: Any) -> Any:
            raise NotImplementedError("no such thing\non any line")

    kinds = {"off": Off, "broken": Broken}
    monkeypatch.setattr(choice, "known", lambda kind, base: list(kinds))
    monkeypatch.setattr(choice, "choose", lambda kind, name, base: kinds[name])
    history, line = told(federation(Mlp(), engine="auto"))
    assert history.engine == "loop"
    assert "off is out: the mean of delta differs by" in line
    assert line.endswith("broken is out: no such thing")


def test_where_there_is_little_to_do_nothing_is_tried() -> None:
    history, line = told(federation(Mlp(), engine="auto"))
    assert history.engine == "loop"
    assert "too little to share" in line


@pytest.mark.usefixtures("tried")
def test_a_resume_takes_the_engine_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (ThreadsEngine, ProcessesEngine, BatchedEngine):
        monkeypatch.setattr(kind, "suits", classmethod(lambda cls, setting: cls is ThreadsEngine))
    monkeypatch.setattr(choice, "GAIN", 0.0)  # whatever is not the loop is taken
    what = federation(Mlp(), engine="auto")

    def stop(event: Event) -> None:
        if type(event).__name__ == "RoundCommitted":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        what.run(tmp_path, "one", listeners=[stop])
    assert Store(tmp_path / FILE).entry("one")["engine"] == "threads"
    with pytest.raises(UserError, match='engine "loop", and it was started with "threads"; resume it'):
        replace(what, engine="loop").run(tmp_path, "one", resume=True)
    monkeypatch.setattr(choice.Trial, "choice", lambda self: pytest.fail("it is not tried again"))
    history = what.run(tmp_path, "one", resume=True)
    assert history.engine == "threads"
    assert torch.equal(history.state.params, replace(what, engine="loop").try_out().state.params)
