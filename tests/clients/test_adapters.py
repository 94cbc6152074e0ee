"""A site of adapters: what it answers is what the simulation computes, and what it stands on is its own file."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_model

from clients.config import TrainingTable
from clients.memory import MemoryInRam
from clients.site import SiteHalf
from clients.worker import Place, Worker
from hansa.base import Base
from hansa.codec import plan_vectors, to_plan
from hansa.config import load
from hansa.errors import UserError
from hansa.records import Broadcast, Plan, Reply
from hansa.task import Site
from hansa.wire import link_pb2 as wire
from hansa.workbench import Workbench
from simulations.configured import federation_of
from strategies.fedavg import FedAvg
from tests.clients.parallel.cases import Transformer

TASK = """
from torch.utils.data import TensorDataset

from tests.clients.parallel.cases import Adapted, words


class Words(Adapted):
    def train_data(self, site):
        return words(24)

    def test_data(self, site):
        return words(4)
"""
FEDERATION = """
[federation]
name = "words"
task = "task.py:Words"
seed = 5
[training]
steps = 4
batch_size = 8
lr = 0.5
[rounds]
rounds = 2
[simulation]
sites = 2
[base]
file = "weights/base.safetensors"
sha256 = "{sha256}"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app, its base beside it for a simulation, and a site that keeps the base in a folder of its own."""
    folder = tmp_path / "app"
    (folder / "weights").mkdir(parents=True)
    torch.manual_seed(11)
    path = folder / "weights" / "base.safetensors"
    save_model(Transformer(), str(path))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "task.py").write_text(TASK)
    (folder / "federation.toml").write_text(FEDERATION.format(sha256=sha256))
    (tmp_path / "site" / "models").mkdir(parents=True)
    (tmp_path / "site" / "models" / "base.safetensors").write_bytes(path.read_bytes())
    settle(tmp_path / "site", '[base]\nfolder = "models"\n')
    return folder


def settle(site: Path, base: str) -> None:
    text = '[site]\nname = "one"\nserver = "127.0.0.1:1"\n[training]\ndevice = "cpu"\n'
    (site / "site.toml").write_text(text + base)


def worker(app: Path) -> Worker:
    return Worker(app, Place(app.parent / "site", 0, 1, 0), "run")


def plan_of(bench: Workbench) -> tuple[Plan, wire.Plan]:
    sent = Broadcast(*bench.start)
    plan = Plan("run", 5, 1, "train", "valid", sent, TrainingTable(steps=4, batch_size=8, lr=0.5).hyper(1))
    frame = to_plan(plan, "1", "one")
    for name, data in plan_vectors(sent).items():
        frame.vectors.add(name=name, data=bytes(data))
    return plan, frame


def test_a_site_s_answer_is_what_the_simulation_computes(app: Path) -> None:
    """The upload is the adapters' change, bit for bit, and no byte more: 8 matrices of 2 x 12 float32."""
    one = worker(app)
    base = one.bench.model.state_dict()
    plan, frame = plan_of(one.bench)
    result = one.handle(frame, {}, app.parent / "upload", bytes(32), None)
    assert isinstance(result, wire.Result)
    sent = np.frombuffer(result.upload.data, "<f4")
    assert len(sent) == one.bench.shared.size == 8 * 2 * 12
    bench = Workbench(one.task, (), 5, torch.device("cpu"), one._base(load(app / "federation.toml")["base"]))
    answer = SiteHalf(one.task, FedAvg(), Site("one", 5), bench, MemoryInRam()).handle(plan)
    assert isinstance(answer, Reply)
    assert np.array_equal(sent, answer.upload["delta"].numpy())
    assert np.abs(sent).max() > 0.01
    file = load_file(app / "weights" / "base.safetensors")
    assert all(torch.equal(base[name], file[one.task.base_name(name)]) for name in base if "base_layer" in name)


def test_the_server_needs_no_base_to_know_the_layout(app: Path) -> None:
    """It names the same tensors, and starts the adapters from the same numbers."""
    one = worker(app)
    bare = Workbench(one.task, (), 5, torch.device("cpu"))
    assert one.ready(False)["layout"] == bare.shared.digest
    assert torch.equal(one.bench.start[0], bare.start[0])


def test_a_simulation_moves_the_adapters_and_leaves_the_base(app: Path) -> None:
    history = federation_of(load(app / "federation.toml")).run(app.parent / "runs", "words")
    model, file = history.model(), load_file(app / "weights" / "base.safetensors")
    names = _named(model)
    assert all(torch.equal(model.state_dict()[ours], file[theirs]) for ours, theirs in names.items())
    assert len(names) == len(file)
    saved = load_file(app.parent / "runs" / "words" / "model.safetensors")
    assert saved.keys() == {e.name for e in history.bench.shared.floats}
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in saved.items())
    assert not torch.equal(history.state.params, history.bench.start[0])


def _named(model: torch.nn.Module) -> dict[str, str]:
    return {name: name.replace(".base_layer.", ".") for name, p in model.named_parameters() if not p.requires_grad}


def test_a_site_without_the_base_or_with_another_takes_no_part(app: Path) -> None:
    site = app.parent / "site"
    path = site / "models" / "base.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"base\.safetensors has sha256 .*, not .*; put the file there"):
        worker(app)
    path.unlink()
    with pytest.raises(UserError, match="No such file or directory; put the file there"):
        worker(app)
    settle(site, "")
    with pytest.raises(UserError, match=r"there is no \[base\]; write \[base\] folder = .* base\.safetensors is"):
        worker(app)


def test_a_server_names_no_path_at_a_site(app: Path) -> None:
    """Of what federation.toml says only the last part of the file's name counts there."""
    table = load(app / "federation.toml", ['base.file="../../../etc/base.safetensors"'])["base"]
    assert table.within(Path("models")) == Base(Path("models/base.safetensors"), table.sha256)
