"""FedRep as its paper has it (Collins, Hassani, Mokhtari, Shakkottai, ICML 2021)."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hansa
from clients.config import TrainingTable
from clients.memory import MemoryInRam, MemoryOnDisk
from clients.site import SiteHalf
from hansa.metrics import total, value
from hansa.records import Broadcast, Plan, Reply
from hansa.workbench import LOCAL, Workbench
from server.events import Event, RoundEnded
from simulations.history import History
from strategies.base import Strategy

BODY = 4 * 8 + 8
SITES = ("plain", "flipped")
Chosen = Callable[..., Any]


class Toy(hansa.Task):
    """A body (4 -> 8) and a head (8 -> 2). Both sites have the same patients; at one of them the labels are swapped."""

    def model(self) -> nn.Module:
        body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        return nn.Sequential(OrderedDict(body=body, head=nn.Linear(8, 2)))

    def train_data(self, site: hansa.Site) -> TensorDataset:
        return rows(0, site)

    def valid_data(self, site: hansa.Site) -> None:
        return None

    def test_data(self, site: hansa.Site) -> TensorDataset:
        return rows(1, site)


def rows(seed: int, site: hansa.Site) -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    y = (x[:, 0] + x[:, 1] > 0).long()
    return TensorDataset(x, 1 - y if site.name == "flipped" else y)


def run(strategy: Strategy | None, folder: Path, listeners: tuple[Callable[[Event], None], ...] = ()) -> History:
    training = {"epochs": 1, "batch_size": 16, "lr": 0.2}
    where: dict[str, Any] = {"runs": folder, "run": "one", "listeners": listeners}
    return hansa.simulate(Toy(), strategy=strategy, sites=SITES, training=training, rounds=8, **where)


def accuracy(history: History) -> float | None:
    return value(total(history.test.values())["accuracy"])


def test_swapped_labels_defeat_one_head_and_not_two(chosen: Chosen, tmp_path: Path) -> None:
    """Whatever one model says of a patient is right at one site and wrong at the other: it scores 1/2 exactly.

    With a head each the sites' problems are one problem, whose body they share.
    """
    assert accuracy(run(None, tmp_path / "fedavg")) == 0.5
    fedrep = accuracy(run(chosen("fedrep.py:FedRep", local=["head.*"], head_passes=3), tmp_path / "fedrep"))
    assert fedrep is not None
    assert fedrep > 0.9


def test_the_head_stays_at_its_site(chosen: Chosen, tmp_path: Path) -> None:
    """The federation's vector, both ways, has a place for the body and none for a head."""
    seen: list[tuple[int, ...]] = []

    def sizes(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.plan.kind == "train":
            seen.append((len(event.plan.broadcast.params), *(len(mean) for mean in event.aggregate.mean.values())))

    history = run(chosen("fedrep.py:FedRep", local=["head.*"]), tmp_path, (sizes,))
    assert seen == [(BODY, BODY)] * 8
    assert {entry.name for entry in history.bench.shared.floats} == {"body.0.weight", "body.0.bias"}
    heads = [MemoryOnDisk(tmp_path / "one" / "memory" / site).load(newest(tmp_path, site))[LOCAL] for site in SITES]
    assert heads[0].shape == heads[1].shape == (8 * 2 + 2,)
    assert not torch.allclose(heads[0], heads[1], atol=0.1)


def newest(folder: Path, site: str) -> str:
    return max(path.stem for path in (folder / "one" / "memory" / site).iterdir())


def test_a_round_is_the_papers_algorithm_1(chosen: Chosen) -> None:
    """By hand, full batches: h <- h - lr * grad_h f(h, phi) twice, then phi <- phi - lr * grad_phi f(h, phi) once."""
    task, site, lr = Toy(), hansa.Site("plain", 0), 0.7
    strategy = chosen("fedrep.py:FedRep", local=["head.*"], head_passes=2)
    bench = Workbench(task, strategy.local, 0, torch.device("cpu"))
    memory = MemoryInRam()
    phi, h = bench.start[0], bench.local.read(bench.model)
    x, y = task.train_data(site).tensors

    def f(h: Tensor, phi: Tensor) -> Tensor:
        z = F.linear(x, phi[:32].view(8, 4), phi[32:]).tanh()
        return F.cross_entropy(F.linear(z, h[:16].view(2, 8), h[16:]), y)

    plan = Plan(
        "run", 0, 1, "train", "valid", Broadcast(phi, bench.start[1]), TrainingTable(batch_size=64, lr=lr).hyper(1)
    )
    answer = SiteHalf(task, strategy, site, bench, memory).handle(plan)
    assert isinstance(answer, Reply)
    for _ in range(2):
        h = h - lr * torch.func.grad(f, argnums=0)(h, phi)
    torch.testing.assert_close(memory.load(answer.memory)[LOCAL], h)
    torch.testing.assert_close(answer.upload["delta"], -lr * torch.func.grad(f, argnums=1)(h, phi))


def test_the_mean_over_sites_is_uniform(chosen: Chosen) -> None:
    """Algorithm 1: phi = 1/(rn) * sum of the sites' phi_i, whatever their rows."""
    parts = chosen("fedrep.py:FedRep", local=["head.*"]).parts(BODY, BODY)
    assert [(part.size, part.weight) for part in parts.values()] == [(BODY, "uniform")]


def test_fedrep_without_a_head_is_refused(chosen: Chosen) -> None:
    with pytest.raises(ValidationError, match="local"):
        chosen("fedrep.py:FedRep")
