"""A task whose update is the same for any number of ranks: no dropout. Ranks note their steps, and may be slowed."""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import hansa

TROUBLE = Path(os.environ["TROUBLE"])


class Together(hansa.Task):
    kind = "regression"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def train_data(self, site: hansa.Site) -> TensorDataset:
        x = torch.randn(90, 6, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True).sin())

    def valid_data(self, site: hansa.Site) -> None:
        return None

    def test_data(self, site: hansa.Site) -> None:
        return None

    def batch_transform(self, batch: Any) -> Any:
        rank = dist.get_rank() if dist.is_initialized() else 0
        with (TROUBLE / f"rank{rank}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(float((TROUBLE / "pause").read_text()))
        return batch
