"""Adapters under secure aggregation over real connections: only they travel, and every site's base is as it was."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.secure.conftest import SITES, assert_same
from tests.secure.test_whole import files

if TYPE_CHECKING:
    from tests.secure.conftest import Federation

TASK = """
from torch import nn

import hansa


class Low(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 200, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Small(hansa.Task):
    trainable_only = True

    def model(self):
        first, last = nn.Linear(6, 200).requires_grad_(False), nn.Linear(200, 1).requires_grad_(False)
        return nn.Sequential(Low(first), nn.Tanh(), last)
"""


@pytest.mark.long
def test_deployed_equals_simulated_and_the_base_stays(
    federation: "Federation", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """412 numbers go up in place of 2,013; the base's bytes are in no file of the server's."""
    torch.manual_seed(3)
    shapes = {"0.weight": (200, 6), "0.bias": (200,), "2.weight": (1, 200), "2.bias": (1,)}
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "base.safetensors")
    data = (tmp_path / "base.safetensors").read_bytes()
    app = federation.app("adapters")
    (app / "task.py").write_text(TASK)
    (app / "base.safetensors").write_bytes(data)
    toml = (app / "federation.toml").read_text()
    table = f'[base]\nfile = "base.safetensors"\nsha256 = "{hashlib.sha256(data).hexdigest()}"\n'
    (app / "federation.toml").write_text(f"{toml}\n{table}")
    for site in SITES:
        home = federation.consortium.site(site)
        (home / "models").mkdir()
        (home / "models" / "base.safetensors").write_bytes(data)
        federation.consortium.write_site(site, {"base": 'folder = "models"'})
    run = federation.serve(app)
    assert federation.dropped("adapters") == set()
    assert_same(run, federation.simulated(app, set(), monkeypatch))
    adapter = load_file(run / "model.safetensors")
    assert {name: tensor.numel() for name, tensor in adapter.items()} == {"0.down.weight": 12, "0.up.weight": 400}
    marks = [data[-800:-768], data[-4000:-3968]]  # of weights, in the middle of tensors
    assert not [path for path in files(run) if any(mark in path.read_bytes() for mark in marks)]
    assert all((federation.consortium.site(s) / "models" / "base.safetensors").read_bytes() == data for s in SITES)
