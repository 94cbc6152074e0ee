"""What rounding, clipping and weights in levels cost in accuracy, by the width of the ring.

Two federations, each without secure aggregation and in rings of 32, 24, 20 and 16 bits, over the same seeds, with
[privacy] as `hansa tune clip` finds it: heart disease at four hospitals (needs HANSA_DATA_DIR), and a CNN of a million
parameters on made-up pictures, at sites of 20 to 2,000 rows.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import hansa
from clients.config import TrainingTable
from hansa.config import load
from hansa.metrics import total, value
from hansa.seeds import torch_generator
from hansa.task import Source
from privacy.config import PrivacyTable
from server.config import RoundsTable
from simulations.configured import federation_of
from simulations.datasets.base import Arrays
from simulations.federation import Federation
from simulations.history import History
from simulations.tune import measured
from strategies.fedavg import FedAvg
from strategies.scaffold import Scaffold

HEART = Path(__file__).parents[1] / "examples" / "heart_disease" / "federation.toml"
SIZES = (20, 63, 200, 632, 2000)  # training rows: 1 to 100
SIDE, CLASSES, NOISE = 12, 10, 2.2
WIDTHS = (32, 24, 20, 16)


class Pictures(hansa.Task):
    """A small CNN, whose floats lie for the most part in one layer."""

    def model(self) -> nn.Module:
        """1,004,730 parameters."""
        convolution = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return nn.Sequential(convolution, nn.Linear(8 * 36, 3360), nn.ReLU(), nn.Linear(3360, CLASSES))


def pictures(seed: int = 0) -> dict[str, Source]:
    """A pattern for each class, under noise; each site draws its classes unevenly."""
    random = torch_generator(seed, "pictures")
    patterns = torch.randn(CLASSES, 1, SIDE, SIDE, generator=random)

    def rows(number: int, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.multinomial(shares, number, replacement=True, generator=random)
        return patterns[labels] + NOISE * torch.randn(number, 1, SIDE, SIDE, generator=random), labels

    sources: dict[str, Source] = {}
    for number in SIZES:
        shares = torch.rand(CLASSES, generator=random) + 0.1
        sources[f"site-{number}"] = Arrays(*rows(number, shares), *rows(1000, torch.ones(CLASSES))).source
    return sources


def heart() -> Federation:
    """Logistic regression by FedProx, 486 training rows."""
    return federation_of(load(HEART))


def cnn() -> Federation:
    """FedAvg on 2,915 pictures."""
    work = TrainingTable(epochs=1, batch_size=32, lr=0.05)
    return Federation(Pictures(), FedAvg(), pictures(), work, RoundsTable(rounds=6))


def cnn_scaffold() -> Federation:
    """The same by SCAFFOLD, which uploads two parts."""
    return replace(cnn(), strategy=Scaffold(weight="examples"))


FEDERATIONS = {"heart": heart, "cnn": cnn, "cnn-scaffold": cnn_scaffold}


def accuracies(histories: list[History]) -> list[float]:
    """In per cent, on all sites' test rows together."""
    return [100 * float(value(total(history.test.values())["accuracy"]) or 0) for history in histories]


def compared(federation: Federation, seeds: int) -> tuple[Mapping[str, object], list[float], dict[int, list[float]]]:
    """What was found for [privacy]; accuracies without masking, and by width."""
    plain, found = measured(federation, seeds, shown=False)
    by_width = {}
    for bits in WIDTHS:
        table = PrivacyTable(secure=True).model_copy(update={**found, "ring_bits": bits})
        one = replace(federation, privacy=table)
        by_width[bits] = accuracies([replace(one, seed=federation.seed + seed).try_out() for seed in range(seeds)])
    return found, accuracies(plain), by_width


def main() -> None:
    """Prints a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("names", nargs="*", default=list(FEDERATIONS), help=", ".join(FEDERATIONS))
    args = parser.parse_args()
    for name in args.names:
        found, plain, by_width = compared(FEDERATIONS[name](), args.seeds)
        print(f"{name}: {found}", flush=True)
        print(f"  without: {mean(plain):.2f}  {[round(one, 2) for one in plain]}", flush=True)
        for bits, many in by_width.items():
            points = mean(many) - mean(plain)
            print(f"  {bits} bits: {points:+.2f} points  {[round(one, 2) for one in many]}", flush=True)


def mean(many: list[float]) -> float:
    return sum(many) / len(many)


if __name__ == "__main__":
    main()
