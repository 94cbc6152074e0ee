"""A task: what a user writes, once, for simulation and deployment alike."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Literal, Protocol, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

from hansa.errors import UserError
from hansa.metrics import Metrics, roc


class Dataset(Protocol):
    """A map-style dataset: torch's, or anything with a length and rows by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Source(Protocol):
    """Where a site's data comes from when the configuration says so (a CSV, a partition, a benchmark's files)."""

    def split(self, name: Literal["train", "test"]) -> Dataset:
        """Training or test rows."""
        ...


class Split(Enum):
    """`valid_data`'s default: a seeded share of the training rows is set apart."""

    FROM_TRAIN = "from train"


FROM_TRAIN: Final = Split.FROM_TRAIN


@dataclass(frozen=True)
class Site:
    """One site, as a task sees it."""

    name: str
    seed: int  # the run's
    source: Source | None = field(default=None, repr=False)

    def data(self, split: Literal["train", "test"]) -> Dataset:
        """The data that the site's configuration names.

        Raises:
            UserError: no data is configured.
        """
        if self.source is None:
            mend = f"write a [data] table, choose a dataset, or define {split}_data in the task"
            raise UserError(f"site {self.name!r}: no data; {mend}")
        return self.source.split(split)


class Task:
    """Model, data, loss and metrics. Only `model` must be written; `hansa` finds the class as `file.py:Class`."""

    kind: ClassVar[Literal["classification", "regression"]] = "classification"
    valid_fraction: ClassVar[float] = 0.1  # of the training rows, when valid_data is left as it is
    trainable_only: ClassVar[bool] = False  # share parameters that require a gradient; all else stays where it is

    def model(self) -> nn.Module:
        """A new model. Its random numbers come from torch's global generator, which the run seeds."""
        raise UserError(f"task {type(self).__name__}: define model(self), returning a torch.nn.Module")

    def base_name(self, name: str) -> str:
        """What [base]'s file calls a tensor of the model; the default leaves out what PEFT puts into names."""
        return name.removeprefix("base_model.model.").replace(".base_layer.", ".")

    def train_data(self, site: Site) -> Dataset:
        """The site's training rows, each `(x, y)`."""
        return site.data("train")

    def valid_data(self, site: Site) -> Dataset | Split | None:
        """Rows to choose the model by. None: every row trains, and best-model choice and early stopping are refused."""
        return FROM_TRAIN

    def test_data(self, site: Site) -> Dataset | None:
        """Rows to score the chosen model on, once, at the end."""
        return site.data("test")

    def server_data(self) -> Dataset | None:
        """Public rows at the server, on which each round's model is scored."""
        return None

    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Output and target of a batch; override it when rows are not `(x, y)`."""
        inputs, target = batch
        return model(inputs), target

    def loss(self, output: Any, target: Any) -> Tensor:
        """The mean loss of a batch: cross-entropy, binary cross-entropy for a single logit, squared error."""
        if self.kind == "regression":
            return F.mse_loss(output.reshape(target.shape), target.to(output.dtype))
        if _one_logit(output, target):
            return F.binary_cross_entropy_with_logits(output.reshape(-1), target.reshape(-1).to(output.dtype))
        return F.cross_entropy(output, target)

    def metrics(self, output: Any, target: Any) -> Metrics:
        """Sums over a batch: `(numerator, count)` or `hansa.metrics.roc(...)` by name. The loss is added by itself."""
        if self.kind == "regression":
            error = output.reshape(target.shape) - target
            return {"mae": (error.abs().sum(), error.numel()), "mse": (error.square().sum(), error.numel())}
        if _one_logit(output, target):
            logits, target = output.reshape(-1), target.reshape(-1)
            correct = (logits > 0) == (target > 0.5)
            return {"accuracy": (correct.sum(), len(target)), "auc": roc(logits, target)}
        accuracy = ((output.argmax(1) == target).sum(), target.numel())
        if output.shape[1] == 2:
            return {"accuracy": accuracy, "auc": roc(output[:, 1] - output[:, 0], target)}
        return {"accuracy": accuracy}

    def count(self, batch: Any) -> float | Tensor:
        """What a batch's mean loss is over, where a site's processes share batches. None defined: its rows.

        For a loss over tokens some of which are padding, return the number that are not.
        """
        raise NotImplementedError

    def parallel_plan(self, model: nn.Module) -> Mapping[str, Any] | None:
        """How tensor parallelism cuts the model's layers: styles by the layers' names, or patterns of names.

        A style is "colwise", "rowwise", "colwise_gather" (its output is put together again), "rowwise_embedding", or a
        `torch.distributed.tensor.parallel.ParallelStyle`. None: the model cannot be cut.
        """
        return None

    def optimizer(self, params: Iterable[Any], hyper: Mapping[str, Any]) -> Optimizer:
        """The local optimiser, new each round; `hyper` holds [training]'s optimizer, lr, momentum and weight_decay."""
        lr, decay = hyper["lr"], hyper["weight_decay"]
        match hyper["optimizer"]:
            case "sgd":
                return torch.optim.SGD(params, lr=lr, momentum=hyper["momentum"], weight_decay=decay)
            case "adam":
                return torch.optim.Adam(params, lr=lr, weight_decay=decay)
            case "adamw":
                return torch.optim.AdamW(params, lr=lr, weight_decay=decay)
            case other:
                raise UserError(f"[training] optimizer: {other!r} is not sgd, adam or adamw; define Task.optimizer")

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """A schedule over the round's local steps, stepped after each."""
        return None

    def batch_transform(self, batch: Any) -> Any:
        """Augmentation of a training batch; random numbers come from torch's seeded global generator."""
        return batch

    def batches(self, site: Site, dataset: Dataset, seed: int) -> Iterator[Any] | None:
        """A batch stream of the task's own, kept through the run and drawn from as the rounds go on.

        None: shuffled epochs of `batch_size`, seeded by run, round and site. An own stream draws from torch's global
        generator as the task left it: the run does not seed it.
        """
        return None


def sized(rows: Any, method: str) -> Any:
    """The rows that a task gave.

    Raises:
        UserError: they have no length, or cannot be taken by number.
    """
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        mend = "return a dataset with a length and rows by number"
        raise UserError(f"task: {method} gave {type(rows).__name__}; {mend}")
    return rows


def output_of(task: Task, model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """The task's output and target of a batch.

    Raises:
        UserError: it gave something else.
    """
    both: object = task.forward(model, batch)
    if not isinstance(both, tuple | list) or len(both) != 2:
        raise UserError(f"task: forward gave {type(both).__name__}; return two values, output and target")
    return both[0], both[1]


def collate(dataset: Dataset, rows: Sequence[int]) -> Any:
    """A batch of rows; whole tensors are indexed at once where the dataset allows it."""
    if is_whole(dataset):
        return tuple(t[torch.as_tensor(rows)] for t in dataset.tensors)
    fetch = getattr(dataset, "__getitems__", None)
    return torch.utils.data.default_collate(fetch(rows) if fetch else [dataset[i] for i in rows])


def is_whole(dataset: Dataset) -> TypeGuard[TensorDataset]:
    """Whether its rows are its tensors' as they stand: a subclass of TensorDataset may change them on the way."""
    return isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__


def _one_logit(output: Tensor, target: Tensor) -> bool:
    return output.numel() == target.numel()
