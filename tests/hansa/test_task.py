"""A task's defaults, and how rows become batches."""

import warnings
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hansa
from hansa.errors import UserError
from hansa.evaluate import to_device
from hansa.metrics import values
from hansa.task import Dataset, Site, Task, collate


class Regression(Task):
    """Only the kind differs."""

    kind = "regression"


def of_defaults(task: Task, output: Tensor, target: Tensor) -> dict[str, float | None]:
    from hansa.metrics import as_sums

    return values(as_sums(task.metrics(output, target)))


def test_one_logit_is_binary_cross_entropy_whatever_the_target_s_shape() -> None:
    logits, labels = torch.tensor([[0.3], [-2.0]]), torch.tensor([1, 0])
    expected = F.binary_cross_entropy_with_logits(logits.view(-1), labels.float())
    assert torch.equal(Task().loss(logits, labels), expected)
    assert torch.equal(Task().loss(logits, labels.view(-1, 1)), expected)


def test_several_logits_are_cross_entropy() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    assert torch.equal(Task().loss(logits, labels), F.cross_entropy(logits, labels))
    assert of_defaults(Task(), logits, labels) == {"accuracy": pytest.approx(accuracy_score(labels, logits.argmax(1)))}


def test_two_logits_have_the_auc_of_their_difference() -> None:
    logits, labels = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]), torch.tensor([1, 0, 0])
    assert of_defaults(Task(), logits, labels)["auc"] == pytest.approx(0.5)
    assert of_defaults(Task(), (logits[:, 1:] - logits[:, :1]), labels)["auc"] == pytest.approx(0.5)


def test_regression_never_broadcasts() -> None:
    """A (B, 1) output beside a (B) target gives B errors, not B squared."""
    output, target = torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])
    assert float(Regression().loss(output, target)) == pytest.approx((1 + 4) / 2)
    assert of_defaults(Regression(), output, target) == {"mae": 1.5, "mse": 2.5}


def test_a_task_without_a_model_or_data_says_what_to_write() -> None:
    with pytest.raises(UserError, match="task Task: define model"):
        Task().model()
    with pytest.raises(UserError, match=r"site 'a': no data; write a \[data\] table, choose a dataset"):
        Task().train_data(Site("a", 0))


def test_an_unknown_optimizer_is_told() -> None:
    hyper = {"optimizer": "lion", "lr": 1.0, "weight_decay": 0.0, "momentum": 0.0}
    with pytest.raises(UserError, match=r"'lion' is not sgd, adam or adamw; define Task\.optimizer"):
        Task().optimizer(nn.Linear(1, 1).parameters(), hyper)


class Words:
    """A map-style dataset that is none of torch's."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(index)), index


class Fetching(Words):
    """One that fetches many rows at once."""

    def __getitems__(self, indices: Any) -> list[tuple[Tensor, int]]:
        return [self[i] for i in reversed(list(indices))]


class Doubled(TensorDataset):
    """Tensors whose rows are changed on the way."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = self.tensors
        return 2 * x[index], y[index]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Words(), [2, 0]),
        (Fetching(), [0, 2]),
        (TensorDataset(torch.arange(6.0).view(3, 2), torch.arange(3)), [2, 0]),
    ],
)
def test_any_map_style_dataset_becomes_batches(dataset: Dataset, expected: list[int]) -> None:
    x, y = collate(dataset, [2, 0])
    assert (x.shape, y.tolist()) == ((2, 2), expected)


def test_rows_that_a_tensor_dataset_changes_on_the_way_come_changed() -> None:
    x, y = collate(Doubled(torch.arange(6.0).view(3, 2), torch.arange(3)), [2, 0])
    assert (x.tolist(), y.tolist()) == ([[8.0, 10.0], [0.0, 2.0]], [2, 0])


def test_batches_of_any_form_go_to_the_device() -> None:
    class Pair(NamedTuple):
        x: Tensor
        names: list[str]

    batch = to_device({"a": Pair(torch.ones(2), ["b"]), "c": [torch.ones(1)]}, torch.device("meta"))
    assert (batch["a"].x.device.type, batch["a"].names, batch["c"][0].device.type) == ("meta", ["b"], "meta")


def test_the_public_face_is_there_and_lazy() -> None:
    with warnings.catch_warnings():
        assert hansa.Task is Task
        assert {"Task", "Strategy", "simulate", "UserError"} <= set(dir(hansa))
