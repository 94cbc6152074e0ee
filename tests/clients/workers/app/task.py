"""Ranks that train together without help: each takes its rows of a batch, and the strategy's hook sums the gradients.

What is to go wrong is said by files in the folder that TROUBLE names; there, too, each rank notes its steps.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import hansa
from hansa.errors import UserError

TROUBLE = Path(os.environ["TROUBLE"])


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


class Together(hansa.Task):
    kind = "regression"

    def model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def train_data(self, site):
        x = torch.randn(90, 6, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True).sin())

    def valid_data(self, site):
        return None

    def test_data(self, site):
        return None

    def scheduler(self, optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)

    def batch_transform(self, batch):
        with (TROUBLE / f"rank{rank()}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(float((TROUBLE / "pause").read_text()))
        if (TROUBLE / f"error{rank()}").exists():
            raise LookupError("an error of the task's")
        if (TROUBLE / f"mistake{rank()}").exists():
            raise UserError("a mistake of the user's")
        return tuple(part[rank() :: world()] + 0.01 * torch.randn(1) for part in batch)


class Summed(hansa.Strategy):
    def correct_grad(self, grad, w, anchor, shared, memory, step):
        if dist.is_initialized():
            dist.all_reduce(grad)
        return grad / world()
