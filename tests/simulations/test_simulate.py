"""A run as a whole: the same bits in any order and after any kill; the model that validation chooses."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clients.config import TrainingTable
from hansa.errors import RunFailed, UserError
from hansa.records import Plan, Refusal, Reply
from hansa.task import Dataset, Site, Task
from server.config import RoundsTable
from server.events import Event, Note, RoundEnded, Scored
from simulations.api import simulate
from simulations.datasets.breast_cancer import BreastCancer
from simulations.datasets.digits import Digits
from simulations.engines.siteloop import SiteLoop
from simulations.federation import Federation
from simulations.partition import Dirichlet, Iid
from simulations.stragglers import Stragglers
from strategies.fedavg import FedAvg
from strategies.scaffold import Scaffold


class Tumour(Task):
    """Logistic regression."""

    def model(self) -> nn.Module:
        return nn.Linear(30, 1)


class Dropping(Task):
    """A small network with dropout and batch norm: it draws while it trains, and has integer buffers."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


TRAINING = TrainingTable(epochs=1, batch_size=16, lr=0.1, drop_last=True)


def federation(task: Task, reverse: bool = False, strategy: Any = None, **more: Any) -> Federation:
    sites = list(BreastCancer().sites())
    sources = {site: BreastCancer().source(site) for site in (reversed(sites) if reverse else sites)}
    return Federation(task, strategy or FedAvg(), sources, TRAINING, RoundsTable(rounds=3), **more)


def same(a: Federation, b: Federation) -> bool:
    one, two = a.try_out().state, b.try_out().state
    return torch.equal(one.params, two.params) and torch.equal(one.counters, two.counters)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    assert same(federation(Dropping()), federation(Dropping()))
    assert not same(federation(Dropping()), replace(federation(Dropping()), seed=1))


@pytest.mark.parametrize("strategy", [FedAvg(), Scaffold()])
def test_sites_in_another_order_give_the_same_bits(strategy: Any) -> None:
    assert same(federation(Dropping(), strategy=strategy), federation(Dropping(), reverse=True, strategy=strategy))


def test_results_that_arrive_in_another_order_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites work in their order and answer in the opposite one."""
    expected = federation(Dropping()).try_out().state.params
    work = SiteLoop.answers

    def backwards(loop: SiteLoop, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Iterator[Reply | Refusal]:
        yield from reversed(list(work(loop, plan, asked, mine)))

    monkeypatch.setattr(SiteLoop, "answers", backwards)
    assert torch.equal(federation(Dropping()).try_out().state.params, expected)


def test_what_was_drawn_before_a_run_changes_nothing() -> None:
    first = federation(Dropping()).try_out().state.params
    torch.rand(17)
    assert torch.equal(federation(Dropping()).try_out().state.params, first)


def test_batch_norm_counters_are_counted_not_averaged() -> None:
    """Three rounds from the largest count: north has the most rows, so its batches are counted."""
    history = federation(Dropping()).try_out()
    rows = 0.9 * len(BreastCancer().source("north").split("train"))
    assert history.state.counters.tolist() == [3 * (round(rows) // 16)]


KILLED = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {folder!r})
    from {module} import federation, Dropping
    from server.config import RoundsTable
    from server.events import Event, RoundEnded
    from dataclasses import replace

    def kill(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.plan.round == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    strategy = __import__("strategies.scaffold", fromlist=["Scaffold"]).Scaffold()
    one = replace(federation(Dropping(), strategy=strategy), rounds=RoundsTable(rounds=10, keep="best"))
    resume = sys.argv[2] == "resume"
    one.run(Path(sys.argv[1]), "run", resume=resume, listeners=[kill] if sys.argv[2] == "kill" else [])
"""


def test_a_run_killed_in_round_5_of_10_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL after the sites have answered and before the round is committed; SCAFFOLD has memory to lose."""
    script = textwrap.dedent(KILLED.format(folder=str(Path(__file__).parent), module=Path(__file__).stem))

    def run(folder: str, how: str) -> int:
        return subprocess.run([sys.executable, "-c", script, str(tmp_path / folder), how], check=False).returncode

    assert run("killed", "kill") == -9
    assert run("killed", "resume") == 0
    assert run("whole", "run") == 0
    models = [load_file(tmp_path / folder / "run" / "model.safetensors") for folder in ("killed", "whole")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0].keys() | models[1].keys())
    frames = [pd.read_parquet(tmp_path / folder / "run" / "metrics.parquet") for folder in ("killed", "whole")]
    pd.testing.assert_frame_equal(frames[0], frames[1])


def test_a_run_resumes_only_as_it_was_started(tmp_path: Path) -> None:
    one = federation(Tumour())

    def stop(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.plan.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.run(tmp_path, "run", listeners=[stop])
    with pytest.raises(UserError, match="seed is not what it was when the run was started"):
        replace(one, seed=3).run(tmp_path, "run", resume=True)
    assert one.run(tmp_path, "run", resume=True).round == 3
    with pytest.raises(UserError, match="complete"):
        one.run(tmp_path, "run", resume=True)


# rounds


def events(task: Task, **more: Any) -> list[Event]:
    heard: list[Event] = []
    simulate(task, dataset=BreastCancer(), training=TRAINING, listeners=[heard.append], **more)
    return heard


def test_a_cohort_of_half_asks_two_of_four_in_each_round() -> None:
    table = RoundsTable(rounds=3, sites_per_round=0.5)
    rounds = [e for e in events(Tumour(), rounds=table) if isinstance(e, RoundEnded) and e.plan.kind == "train"]
    assert [len(e.asked) for e in rounds] == [2, 2, 2]
    assert all(e.aggregate.share == 0.5 for e in rounds)


def test_test_rows_are_scored_once_at_the_end() -> None:
    tests = [e for e in events(Tumour(), rounds=3) if isinstance(e, Scored) and e.split == "test" and e.scope == "all"]
    assert [e.round for e in tests] == [3]


def test_the_best_model_by_validation_is_kept() -> None:
    """A learning rate that makes the loss rise again: the chosen round is the one of the least validation loss."""
    work = TRAINING.model_copy(update={"lr": 8.0})
    table = RoundsTable(rounds=8, keep="best")
    history = simulate(Tumour(), dataset=BreastCancer(), training=work, rounds=table)
    curve = history.curve("loss")
    assert history.round == curve.idxmin()
    assert list(curve.index) == list(range(9))


def test_early_stopping_ends_after_patience_rounds_without_a_better_model() -> None:
    table = RoundsTable(rounds=50, patience=2, monitor="accuracy", keep="best")
    history = simulate(Tumour(), dataset=BreastCancer(), training=TRAINING, rounds=table)
    curve = history.curve("accuracy")
    assert history.early
    assert curve.index.max() < 50
    assert curve[history.round] == curve.max()


class Unvalidated(Tumour):
    """Every row trains."""

    def valid_data(self, site: Site) -> Dataset | None:
        return None


@pytest.mark.parametrize("table", [RoundsTable(rounds=2, keep="best"), RoundsTable(rounds=2, patience=1)])
def test_without_validation_rows_a_model_cannot_be_chosen(table: RoundsTable) -> None:
    with pytest.raises(UserError, match="no validation rows to choose the model by"):
        simulate(Unvalidated(), dataset=BreastCancer(), rounds=table)


def test_without_validation_every_row_trains() -> None:
    rounds = [e for e in events(Unvalidated(), rounds=1) if isinstance(e, RoundEnded) and e.plan.kind == "train"]
    rows = sum(len(BreastCancer().source(site).split("train")) for site in BreastCancer().sites())
    assert rounds[0].aggregate.examples == rows


def test_an_unknown_monitor_is_told_with_the_names_there_are() -> None:
    table = RoundsTable(rounds=2, keep="best", monitor="acuracy")
    with pytest.raises(UserError, match="'acuracy' is not among the validation metrics; choose one of accuracy, auc"):
        simulate(Tumour(), dataset=BreastCancer(), rounds=table)


class Exploding(Tumour):
    """One site's loss is infinite."""

    def train_data(self, site: Site) -> Dataset:
        rows = site.data("train")
        assert isinstance(rows, torch.utils.data.TensorDataset)
        x, y = rows.tensors
        return torch.utils.data.TensorDataset(x * (float("inf") if site.name == "west" else 1), y)


def test_a_site_with_nan_is_refused_and_the_round_goes_on() -> None:
    heard = events(Exploding(), rounds=RoundsTable(rounds=1, quorum=3))
    notes = [e.text for e in heard if isinstance(e, Note)]
    assert any(note.startswith("west took no part: part 'delta' has nan at weight[0, 0]") for note in notes)
    assert next(e for e in heard if isinstance(e, RoundEnded)).aggregate.sites == ("east", "north", "south")


def test_too_many_void_rounds_end_the_run_and_leave_the_model_as_it_was(tmp_path: Path) -> None:
    table = RoundsTable(rounds=9, quorum=4, max_void=1)
    with pytest.raises(RunFailed, match="2 rounds in a row did not count; the last: 3 of 4 sites took part"):
        simulate(Exploding(), dataset=BreastCancer(), training=TRAINING, rounds=table, runs=tmp_path)


def test_stragglers_are_dropped_or_kept() -> None:
    work = TRAINING.model_copy(update={"epochs": 5})
    took_part = {}
    for keep in (False, True):
        heard: list[Event] = []
        simulate(
            Tumour(),
            dataset=BreastCancer(),
            training=work,
            rounds=RoundsTable(rounds=1, quorum=1),
            stragglers=Stragglers(fraction=0.5, keep=keep),
            listeners=[heard.append],
        )
        took_part[keep] = len(next(e for e in heard if isinstance(e, RoundEnded)).aggregate.sites)
    assert took_part == {False: 2, True: 4}


# data


class Pixels(Task):
    """Softmax regression; its own pooled rows."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def train_data(self, site: Site) -> Dataset:
        return Digits().pooled().split("train")

    def test_data(self, site: Site) -> Dataset:
        return Digits().pooled().split("test")


def test_a_partition_deals_what_the_task_gives_to_one_site() -> None:
    history = simulate(Pixels(), partition=Dirichlet(sites=5, alpha=0.5), rounds=1)
    assert len(history.test) == 5
    assert sum(sums["accuracy"][1] for sums in history.test.values()) == len(Digits().pooled().split("test"))


def test_a_task_may_bring_its_own_data_for_each_site() -> None:
    assert set(simulate(Pixels(), sites=["a", "b"], rounds=1).test) == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "no sites; give their names or number, a dataset, or a partition"),
        ({"sites": ["a", "a"]}, "a name stands twice"),
        ({"sites": ["a", "all"]}, 'a site cannot be called "all"'),
        ({"sites": ["a"], "device": "cuda:7"}, "there is no cuda:7 on this machine"),
    ],
)
def test_what_cannot_be_simulated_is_told(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulate(Pixels(), rounds=1, **arguments)


class ServerRows(Pixels):
    """Public rows at the server."""

    def server_data(self) -> Dataset:
        return Digits().pooled().split("test")


def test_server_data_is_scored_after_each_round() -> None:
    """The last round's model is scored on the same rows at the server and, as a test, at the sites."""
    history = simulate(ServerRows(), partition=Iid(sites=3), rounds=2)
    curve = history.curve("accuracy", split="server")
    assert list(curve.index) == [1, 2]
    assert curve[2] == pytest.approx(history.curve("accuracy", split="test")[2])


def test_histories_hand_out_the_chosen_model() -> None:
    history = simulate(Pixels(), sites=["a"], rounds=1)
    rows = Digits().pooled().split("test")
    assert isinstance(rows, torch.utils.data.TensorDataset)
    x, y = rows.tensors
    with torch.no_grad():
        output: Tensor = history.model()(x)
    accuracy = (output.argmax(1) == y).float().mean()
    assert float(accuracy) == pytest.approx(history.curve("accuracy", split="test")[1])
