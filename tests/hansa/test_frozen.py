"""Only what is trained is shared, and what it stands on is a file of a given hash, which nobody changes."""

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn

from hansa.base import Base
from hansa.errors import UserError
from hansa.frozen import Frozen, fill
from hansa.layout import Layout
from hansa.task import Task
from hansa.workbench import Workbench

CPU = torch.device("cpu")
NOTHING = torch.zeros(0, dtype=torch.int64)


def same(name: str) -> str:
    return name


class Adapter(nn.Module):
    """A layer that does not move, and one beside it that does."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.side = layer, nn.Linear(layer.in_features, layer.out_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + self.side(x)
        return out


class Adapted(Task):
    trainable_only = True

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).requires_grad_(False)
        model[2] = Adapter(model[2])  # type: ignore[arg-type]
        return model


def plain() -> nn.Module:
    """What Adapted's model is made of."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def saved(model: nn.Module, path: Path) -> Base:
    save_model(model, str(path))
    return Base(path, hashlib.sha256(path.read_bytes()).hexdigest())


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@given(st.lists(st.booleans(), min_size=10, max_size=10), st.integers(0, 99))
def test_a_vector_has_all_that_is_trained_and_nothing_else(trained: list[bool], seed: int) -> None:
    """Whatever is frozen: none of it gets into a vector, and no vector gets into it."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Conv1d(1, 2, 2), nn.LSTM(2, 2))
    named = dict(model.named_parameters())
    for p, moves in zip(named.values(), trained, strict=True):
        p.requires_grad_(moves)
        p.data.fill_(1.0 if moves else float("nan"))
    for buffer in model.buffers():
        buffer.fill_(99) if not buffer.is_floating_point() else buffer.fill_(float("nan"))
    layout = Layout.of(model, trainable=True)
    wanted = [name for name, p in named.items() if p.requires_grad]
    assert [e.name for e in layout.floats] == wanted
    assert (layout.n_counters, layout.size) == (0, sum(named[name].numel() for name in wanted))
    assert torch.equal(layout.read(model), torch.ones(layout.size))
    before = {name: bits(t) for name, t in model.state_dict().items() if name not in wanted}
    layout.write(torch.full((layout.size,), 2.0), model)
    assert all(bits(model.state_dict()[name]) == was for name, was in before.items())
    assert all(bool((named[name] == 2).all()) for name in wanted)


def test_frozen_tensors_may_be_of_types_that_no_vector_holds() -> None:
    """Quantised bases have whole numbers, and float64 is as good: they do not travel."""
    model = nn.Sequential(nn.Linear(2, 2).double().requires_grad_(False), nn.Linear(2, 2))
    model.register_parameter("packed", nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False))
    assert [e.name for e in Layout.of(model, trainable=True).floats] == ["1.weight", "1.bias"]


def test_the_base_s_weights_are_the_file_s_and_the_adapters_stay_as_they_were(tmp_path: Path) -> None:
    """Also in a model that has them under the names that PEFT gives, and BatchNorm's means too."""
    source = plain()
    source.get_buffer("1.running_mean").fill_(0.25)
    base = saved(source, tmp_path / "base.safetensors")
    bare, bench = Workbench(Adapted(), (), 0, CPU), Workbench(Adapted(), (), 0, CPU, base)
    found, was = bench.model.state_dict(), bare.model.state_dict()
    for name, tensor in source.state_dict().items():
        held = found[name.replace("2.", "2.base_layer.")]
        assert torch.equal(held, tensor)
    assert torch.equal(found["2.side.weight"], was["2.side.weight"])
    assert torch.equal(bench.start[0], bare.start[0])
    assert bench.shared.digest == bare.shared.digest


def test_a_tensor_that_stands_at_two_places_is_found_by_either_name(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

    path = tmp_path / "base.safetensors"
    save_file({"out.weight": torch.arange(15.0).view(5, 3)}, path)
    model = Tied().requires_grad_(False)
    fill(model, Base(path, hashlib.sha256(path.read_bytes()).hexdigest()), same)
    assert torch.equal(model.embed.weight, torch.arange(15.0).view(5, 3))


def damaged(base: Base) -> None:
    data = bytearray(base.path.read_bytes())
    data[-1] ^= 1
    base.path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda base: base.path.unlink(), "No such file or directory; put the file there"),
        (lambda base: (base.path.unlink(), base.path.mkdir()), "Is a directory; put the file there"),
        (damaged, "has sha256 [0-9a-f]{64}, not [0-9a-f]{64}; put the file there"),
    ],
)
def test_a_base_that_is_missing_or_another_is_refused_in_a_line(
    tmp_path: Path, harm: Callable[[Base], Any], says: str
) -> None:
    base = saved(plain(), tmp_path / "base.safetensors")
    harm(base)
    with pytest.raises(UserError, match=says) as refused:
        Workbench(Adapted(), (), 0, CPU, base)
    assert str(refused.value).startswith(f"[base]: {base.path}")
    assert "\n" not in str(refused.value)


class Bomb:
    """What a pickled file may do when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was unpickled",)


def test_a_pickled_file_of_the_right_hash_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "base.safetensors"
    path.write_bytes(pickle.dumps(Bomb()) + bytes(64))
    base = Base(path, hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(UserError, match="is no safetensors file"):
        Workbench(Adapted(), (), 0, CPU, base)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"0.weight": torch.zeros(4, 3)}, "has no tensor '0.bias'; take a base that fits"),
        ({"0.weight": torch.zeros(3, 4)}, r"'0.weight' is \(3, 4\) torch.float32 where the model has \(4, 3\)"),
        ({"0.weight": torch.zeros(4, 3, dtype=torch.int8)}, r"is \(4, 3\) torch.int8 where the model has"),
    ],
)
def test_a_base_that_is_not_the_model_s_is_refused_in_a_line(
    tmp_path: Path, tensors: dict[str, Tensor], says: str
) -> None:
    path = tmp_path / "base.safetensors"
    save_file(tensors, path)
    with pytest.raises(UserError, match=says):
        Workbench(Adapted(), (), 0, CPU, Base(path, hashlib.sha256(path.read_bytes()).hexdigest()))


class Unfrozen(Adapted):
    def model(self) -> nn.Module:
        return super().model().requires_grad_(True)


class Still(Adapted):
    def model(self) -> nn.Module:
        return super().model().requires_grad_(False)


class Sharing(Adapted):
    trainable_only = False


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Unfrozen(), r"\[base\]: all parameters of the model require a gradient"),
        (Still(), "task Still: trainable_only, and no parameter requires a gradient"),
        (Sharing(), r"\[base\]: task Sharing shares all of its model; set trainable_only = True"),
    ],
)
def test_a_base_under_a_model_that_cannot_have_one_is_refused(tmp_path: Path, task: Task, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Workbench(task, (), 0, CPU, saved(plain(), tmp_path / "base.safetensors"))


def test_buffers_are_put_back_and_parameters_may_not_move() -> None:
    bench = Workbench(Adapted(), (), 0, CPU)
    model, start = bench.model, {name: t.clone() for name, t in bench.model.state_dict().items()}
    model.train()
    model(torch.randn(8, 3))
    assert not torch.equal(model.state_dict()["1.running_mean"], start["1.running_mean"])
    bench.check_frozen()
    bench.load(*bench.start, {})
    assert all(torch.equal(t, start[name]) for name, t in model.state_dict().items())
    with torch.no_grad():
        model.get_parameter("0.bias").add_(1)
    with pytest.raises(UserError, match=r"parameter '0\.bias' is not shared"):
        bench.check_frozen()


def test_a_parameter_that_is_unfrozen_later_is_refused() -> None:
    model = Adapted().model()
    frozen = Frozen(model)
    model.get_parameter("0.weight").requires_grad_(True)
    with pytest.raises(UserError, match=r"parameter '0\.weight' is not shared"):
        frozen.check()


def test_the_saved_model_is_the_adapter_and_goes_back_into_the_model(tmp_path: Path) -> None:
    bench = Workbench(Adapted(), (), 0, CPU)
    bench.save(torch.arange(10.0), NOTHING, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == {"2.side.weight", "2.side.bias"}
    model = Adapted().model()
    assert not model.load_state_dict(found, strict=False).unexpected_keys
    assert torch.equal(bench.shared.read(model), torch.arange(10.0))


def test_local_adapters_stay_at_the_site_and_the_base_is_no_local_tensor() -> None:
    bench = Workbench(Adapted(), ("2.side.bias",), 0, CPU)
    assert [e.name for e in bench.shared.floats] == ["2.side.weight"]
    assert [e.name for e in bench.local.floats] == ["2.side.bias"]
    with pytest.raises(UserError, match=r"'0\.\*' matches no tensor"):
        Workbench(Adapted(), ("0.*",), 0, CPU)
