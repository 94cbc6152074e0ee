"""A task for ranks that train together.

What is to go wrong is said by files in the folder that TROUBLE names; there, too, each rank notes its steps.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import hansa
from hansa.errors import UserError

TROUBLE = Path(os.environ["TROUBLE"])


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Together(hansa.Task):
    kind = "regression"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def train_data(self, site: hansa.Site) -> TensorDataset:
        x = torch.randn(90, 6, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True).sin())

    def valid_data(self, site: hansa.Site) -> None:
        return None

    def test_data(self, site: hansa.Site) -> None:
        return None

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)

    def batch_transform(self, batch: Any) -> Any:
        with (TROUBLE / f"rank{rank()}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(float((TROUBLE / "pause").read_text()))
        if (told := TROUBLE / f"stall{rank()}").exists():
            told.unlink()
            time.sleep(3600)
        for name, error in (("error", LookupError), ("mistake", UserError)):
            if (told := TROUBLE / f"{name}{rank()}").exists():
                told.unlink()  # once
                raise error("as it was told")
        return tuple(part + 0.01 * torch.randn(1) for part in batch)
