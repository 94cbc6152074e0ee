"""How fast a step of DP-SGD is, beside Opacus on the same model, rows and expected batch.

Three loops take turns, each for some steps at a time: `DpTrainer.fit` as a site runs it, its first look at the task
included; Opacus with Poisson sampling and the hooks that it takes by itself (`make_private`); and Opacus's ghost
clipping, which goes backward twice. Printed are the medians over the turns, in seconds a step, on the wall and of the
processor (other load slows the wall's clock only), and how long the noise for a million coordinates takes. The networks
have about a million parameters: `mnist` is the convolutional network of PyTorch's examples, most of whose parameters
are in a dense layer; in `convolutional` all but a few are in convolutions.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clients.config import TrainingTable
from clients.dpsgd import DpTrainer
from clients.poisson import PoissonBatches
from hansa.layout import Layout
from hansa.task import Task
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream
from strategies.fedavg import FedAvg

CPU = torch.device("cpu")
CLIP, NOISE, RATE = 1.0, 1.0, 0.05


def mnist() -> nn.Module:
    convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def convolutional() -> nn.Module:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]

    blocks = [*block(1, 32), *block(32, 128), nn.Conv2d(128, 256, 3, padding=1), nn.GroupNorm(8, 256), nn.ReLU()]
    ends = [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)]
    return nn.Sequential(*blocks, *ends)


MODELS = {"mnist": mnist, "convolutional": convolutional}


class Digits(Task):
    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self.model = make  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="mnist")
    parser.add_argument("--batch", type=int, default=256, help="rows that a step draws on average")
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads or torch.get_num_threads())
    warnings.simplefilter("ignore")  # Opacus's, about hooks and its own generator
    rows = round(args.batch / RATE)
    data = TensorDataset(torch.randn(rows, 1, 28, 28), torch.randint(0, 10, (rows,)))
    ways = {
        "ours": ours(MODELS[args.model], data, args.steps),
        "opacus": opacus(MODELS[args.model], data, args.batch, args.steps, "hooks"),
        "ghost": opacus(MODELS[args.model], data, args.batch, args.steps, "ghost"),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    worked: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(args.turns + 1):
        for name, way in ways.items():
            start, processor = time.perf_counter(), time.process_time()
            way()
            if turn:  # the first warms up
                spent[name].append((time.perf_counter() - start) / args.steps)
                worked[name].append((time.process_time() - processor) / args.steps)
        if turn:
            print("  ".join(f"{name} {spent[name][-1]:.4f} s ({worked[name][-1]:.4f})" for name in ways), flush=True)
    seconds = {f"{name}_s": round(median(times), 5) for name, times in spent.items()}
    seconds |= {f"{name}_cpu_s": round(median(times), 5) for name, times in worked.items()}
    facts = {"model": args.model, "parameters": sum(p.numel() for p in MODELS[args.model]().parameters())}
    facts |= {"batch": args.batch, "threads": torch.get_num_threads(), "noise_1e6_s": round(noise(), 5)}
    ratios = {
        "ratio": round(seconds["opacus_s"] / seconds["ours_s"], 3),
        "ratio_ghost": round(seconds["ghost_s"] / seconds["ours_s"], 3),
    }
    print(f"RESULT {json.dumps(facts | seconds | ratios | {'load': round(os.getloadavg()[0], 1)})}")


def ours(make: Callable[[], nn.Module], data: TensorDataset, steps: int) -> Callable[[], object]:
    task, model, rows = Digits(make), make(), len(data)
    layout = Layout.of(model)
    hyper = TrainingTable(steps=steps, lr=0.01).hyper(1)
    mechanism = DpSgd("record", rows, RATE, NOISE, CLIP, steps)

    def turn() -> object:
        stream = Stream(os.urandom(32))
        batches = PoissonBatches(task, data, mechanism, stream, CPU)
        anchor = layout.read(model)
        fields: Any = (task, FedAvg(), layout, anchor, {}, {}, hyper, CPU, rows)
        return DpTrainer(*fields, mechanism, stream).fit(model, batches)

    return turn


def opacus(make: Callable[[], nn.Module], data: TensorDataset, batch: int, steps: int, mode: str) -> Callable[[], None]:
    model, criterion = make(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    more: dict[str, Any] = {"grad_sample_mode": "ghost", "criterion": criterion} if mode == "ghost" else {}
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=True,
        **more,
    )
    private, noisy, *loss, loader = made
    loss_of = loss[0] if loss else criterion

    def turn() -> None:
        private.train()
        left = steps
        while left:
            for inputs, target in loader:
                noisy.zero_grad()
                loss_of(private(inputs), target).backward()
                noisy.step()
                left -= 1
                if not left:
                    return

    return turn


def noise() -> float:
    stream, numbers, spent = Stream(os.urandom(32)), torch.zeros(1_000_000), []
    for _ in range(9):
        start = time.perf_counter()
        stream.normal(numbers, 1.0)
        spent.append(time.perf_counter() - start)
    return median(spent)


if __name__ == "__main__":
    main()
