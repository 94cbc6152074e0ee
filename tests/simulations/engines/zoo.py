"""Models that engines may find hard, on rows that are made up."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from hansa.task import Site, Task

CLASSES = 3


class Made(Task):
    """Rows of a site, drawn by its name; sites have unequal numbers of them, and last batches are not full."""

    valid_fraction = 0.0
    shape: tuple[int, ...] = (8,)
    words = 0  # of a vocabulary, where inputs are words

    def train_data(self, site: Site) -> TensorDataset:
        number = int(site.name.rpartition("-")[2])
        random = torch.Generator().manual_seed(number)
        n = 11 + 5 * number
        x = torch.randint(self.words, (n, *self.shape), generator=random) if self.words else None
        rows = torch.randn(n, *self.shape, generator=random) if x is None else x
        return TensorDataset(rows, torch.randint(CLASSES, (n,), generator=random))

    def test_data(self, site: Site) -> TensorDataset:
        return self.train_data(site)


class Mlp(Made):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))


class Cnn(Made):
    shape = (1, 8, 8)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)
        )


class Block(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(4, 4, 3, padding=1), norm, nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class ResNet(Made):
    shape = (1, 8, 8)

    def norm(self) -> nn.Module:
        return nn.BatchNorm2d(4)

    def model(self) -> nn.Module:
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Block(self.norm()), *pooled)


class ResNetGroupNorm(ResNet):
    def norm(self) -> nn.Module:
        return nn.GroupNorm(2, 4)


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Lstm(Made):
    shape = (5, 4)

    def model(self) -> nn.Module:
        return Last(nn.LSTM(4, 6, batch_first=True))


class Gru(Made):
    shape = (5, 4)

    def model(self) -> nn.Module:
        return Last(nn.GRU(4, 6, batch_first=True))


class Transformer(Made):
    shape, words = (5,), 12

    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(12, 8), layer, nn.Flatten(), nn.Linear(40, CLASSES))


class Tied(nn.Module):
    """An embedding whose transpose is the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.words(x).mean(1)))[:, :CLASSES]
        return out


class TiedEmbedding(Made):
    shape, words = (5,), 12

    def model(self) -> nn.Module:
        return Tied()


class Dropped(Made):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return 3 * x**2 * grads[0]


class Cubes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        cubed: Tensor = Cube.apply(self.layer(x))  # type: ignore[no-untyped-call]  # torch has no types for it
        return cubed


class OwnFunction(Made):
    def model(self) -> nn.Module:
        return Cubes()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x) if x.sum().item() > 0 else self.two(x)
        return out


class DataDependent(Made):
    def model(self) -> nn.Module:
        return Branches()


ZOO: list[type[Made]] = [Mlp, Cnn, ResNet, ResNetGroupNorm, Lstm, Gru, Transformer, TiedEmbedding, Dropped, OwnFunction]
ZOO += [DataDependent]
