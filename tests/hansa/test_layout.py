"""Any model of common layers goes to the vector and back bit for bit."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hansa.errors import UserError
from hansa.layout import Layout, chunks


class Scalar(nn.Module):
    """A 0-d buffer, an empty one, a mask, a counter, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.1))
        self.register_buffer("nothing", torch.empty(0, 3))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("cache", torch.rand(4), persistent=False)


class Tied(nn.Module):
    """An output layer that is the embedding's own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight


LAYERS = {
    "linear": lambda: nn.Linear(3, 2),
    "conv": lambda: nn.Conv2d(1, 2, 3),
    "batch norm": lambda: nn.BatchNorm1d(3),
    "layer norm": lambda: nn.LayerNorm(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "lstm": lambda: nn.LSTM(2, 3),
    "gru": lambda: nn.GRU(2, 3),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "embedding": lambda: nn.Embedding(4, 2),
    "prelu": nn.PReLU,
    "scalar": Scalar,
    "tied": Tied,
    "none": nn.ReLU,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def bits(module: nn.Module) -> dict[str, bytes]:
    return {
        name: t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for name, t in module.state_dict().items()
    }


def randomise(module: nn.Module) -> None:
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.randn_like(tensor.data) * 1000)
        elif tensor.dtype is torch.bool:
            tensor.data.copy_(torch.rand(tensor.shape) < 0.5)
        else:
            tensor.data.copy_(torch.randint(-(2**40), 2**40, tensor.shape))


@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4), st.sampled_from(DTYPES), st.integers(0, 99))
def test_any_model_goes_to_the_vector_and_back_bit_for_bit(names: list[str], dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(*(LAYERS[name]() for name in names)).to(dtype)
    randomise(model)
    before, layout = bits(model), Layout.of(model)
    vector, counters = layout.read(model), layout.read_counters(model)
    other = copy.deepcopy(model)
    randomise(other)
    layout.write(vector, other)
    layout.write_counters(counters, other)
    assert bits(other) == before
    assert (vector.dtype, vector.numel()) == (torch.float32, layout.size)


def test_infinities_and_nans_survive() -> None:
    model = nn.Linear(2, 2)
    model.weight.data.copy_(torch.tensor([[float("nan"), float("inf")], [-float("inf"), -0.0]]))
    layout, other = Layout.of(model), nn.Linear(2, 2)
    layout.write(layout.read(model), other)
    assert bits(other) == bits(model)


def test_parameters_come_first_and_buffers_after() -> None:
    layout = Layout.of(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)))
    assert [e.kind for e in layout.floats] == ["parameter"] * 4 + ["buffer"] * 2
    assert (layout.n_parameters, layout.size, layout.n_counters) == (7, 11, 1)


def test_a_tied_weight_stands_once() -> None:
    model = Tied()
    layout = Layout.of(model)
    assert [e.name for e in layout.floats] == ["embed.weight"]
    layout.write(torch.arange(15.0), model)
    assert torch.equal(model.out.weight, torch.arange(15.0).view(5, 3))


def test_unsaved_buffers_are_left_out() -> None:
    assert "cache" not in {e.name for e in Layout.of(Scalar()).floats}


def test_the_digest_tells_layouts_apart() -> None:
    one, same = Layout.of(nn.Linear(2, 3)), Layout.of(nn.Linear(2, 3))
    assert one.digest == same.digest
    others = [nn.Linear(3, 2), nn.Linear(2, 3, bias=False), nn.Linear(2, 3).half(), nn.Sequential(nn.Linear(2, 3))]
    assert one.digest not in {Layout.of(model).digest for model in others}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(2, 2).double(), "'weight' is torch.float64; use float32, float16 or bfloat16"),
        (nn.LazyLinear(2), "'weight' has no shape yet"),
        (nn.Linear(2, 2, dtype=torch.complex64), "'weight' is torch.complex64"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_what_a_vector_cannot_hold_is_named(model: nn.Module, says: str) -> None:
    with pytest.raises(UserError, match="model: tensor") as caught:
        Layout.of(model)
    assert says in str(caught.value)


def test_a_mismatch_names_the_tensor() -> None:
    layout = Layout.of(nn.Linear(3, 1))
    with pytest.raises(UserError, match=r"tensor 'weight' is \(1, 2\)"):
        layout.check(Layout.of(nn.Linear(2, 1)))
    with pytest.raises(UserError, match="tensor 'bias' is missing"):
        layout.write(torch.zeros(4), nn.Linear(3, 1, bias=False))


def test_shapes_are_exact_never_broadcast() -> None:
    layout = Layout.of(nn.Linear(3, 1, bias=False))
    with pytest.raises(UserError, match=r"shape \(1,\) where \(3,\)"):
        layout.write(torch.zeros(1), nn.Linear(3, 1, bias=False))


def test_a_pattern_without_a_match_names_the_nearest() -> None:
    with pytest.raises(UserError, match="'wieght' matches no tensor; the nearest name is 'weight'"):
        Layout.of(nn.Linear(2, 1), without=("wieght",))


def test_only_and_without_share_a_model_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    shared, own = Layout.of(model, without=("1.*",)), Layout.of(model, only=("1.*",))
    assert {e.name for e in shared.floats} == {"0.weight", "0.bias"}
    assert shared.size + own.size == Layout.of(model).size
    assert (shared.n_counters, own.n_counters) == (0, 1)


def test_locate_names_the_element() -> None:
    layout = Layout.of(nn.Linear(3, 2))
    assert [layout.locate(i) for i in (0, 4, 7)] == ["weight[0, 0]", "weight[1, 1]", "bias[1]"]


@given(st.integers(0, 50), st.integers(1, 20))
def test_chunks_cover_a_vector_once(length: int, size: int) -> None:
    vector: Tensor = torch.arange(length)
    parts = [vector[part] for part in chunks(length, size)]
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.int64), *parts]), vector)
    assert all(0 < len(part) <= size for part in parts)
