"""Makes the rows of the peers' comparison, what Hansa will draw of them, and where the rounds lead in float64."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parent / "peers"))  # as the peers import it

from run_hansa import federation, timed
from workload import WORK, Array, Visits, model

from clients.batches import Batches
from hansa.workbench import Workbench
from server.cohort import draw

__all__ = ["WORK", "Array", "Visits", "exact", "federation", "timed", "write"]


def digits(random: Generator, sites: int) -> tuple[Array, Array, Array]:
    """Rows of 64, labels, and where each site begins: scikit-learn's digits under noise, labels skewed."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    of = [np.flatnonzero(y == label) for label in range(10)]
    start = np.concatenate([[0], np.cumsum(random.integers(20, 101, sites))])
    labels = skewed(random, np.diff(start))
    chosen = np.array([random.choice(of[label]) for label in labels])
    return X[chosen] + np.float32(0.02) * random.standard_normal((len(chosen), 64), np.float32), labels, start


def images(random: Generator, sites: int) -> tuple[Array, Array, Array]:
    """Images of 28 x 28: ten coarse patterns, shifted by up to two pixels, under noise."""
    patterns = np.kron(random.standard_normal((10, 7, 7)), np.ones((4, 4))).astype(np.float32)
    start = np.arange(sites + 1) * 100
    labels = skewed(random, np.diff(start))
    shifts = random.integers(-2, 3, (len(labels), 2))
    X = np.stack([np.roll(patterns[one], tuple(by), (0, 1)) for one, by in zip(labels, shifts, strict=True)])
    noise = random.standard_normal(X.shape, np.float32)
    return (np.float32(0.3) * (X + noise))[:, None], labels, start


def skewed(random: Generator, sizes: Array) -> Array:
    """Labels of each site, drawn from its own Dirichlet(0.5)."""
    drawn = [random.choice(10, size, p=random.dirichlet([0.5] * 10)) for size in sizes]
    return np.concatenate(drawn).astype(np.int64)


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Writes the sites' rows, for Hansa, and the visits, for the peers."""
    work, rows, visits = WORK[name], folder / "rows.npz", folder / "visits.npz"
    X, y, start = (digits if name == "a" else images)(np.random.default_rng(0), work.sites)
    np.savez(rows, X=X, y=y, start=start)
    what = federation(name, rows)
    bench = Workbench(what.task, (), what.seed, torch.device("cpu"))
    weights = {f"w{i}": one.of(bench.start[0]).numpy() for i, one in enumerate(bench.shared.floats)}
    order, ends = [], [0]
    for number in range(1, work.rounds + 1):
        for site in draw(what.sources, work.cohort, what.seed, number):
            mine = np.arange(start[int(site)], start[int(site) + 1])
            numbered = torch.utils.data.TensorDataset(torch.from_numpy(mine))
            where = (what.seed, number, site)
            batches: Any = Batches(what.task, numbered, what.hyper(number), where, torch.device("cpu"))
            order += [batch[0].numpy() for batch in batches]
            ends.append(ends[-1] + len(mine))
    chosen = np.concatenate(order)
    np.savez(visits, name=name, X=X[chosen], y=y[chosen], start=np.array(ends), **weights)
    return rows, visits


def exact(visits: Visits) -> list[Array]:
    """The last weights of a plain loop in float64, its means too."""
    net = model(visits.name).double()
    X, y = torch.from_numpy(visits.X).double(), torch.from_numpy(visits.y)
    w = [torch.from_numpy(one).double() for one in visits.weights]
    parameters = list(net.parameters())
    for number in range(visits.rounds):
        total, rows = [torch.zeros_like(one) for one in w], 0
        for visit in visits.round(number):
            with torch.no_grad():
                for parameter, one in zip(parameters, w, strict=True):
                    parameter.copy_(one)
            for batch in visits.batches(visit):
                gradients = torch.autograd.grad(F.cross_entropy(net(X[batch]), y[batch]), parameters)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter -= visits.lr * gradient
            rows += visits.count(visit)
            for one, parameter in zip(total, parameters, strict=True):
                one += visits.count(visit) * parameter.detach()
        w = [one / rows for one in total]
    return [one.numpy() for one in w]
