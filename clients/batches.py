"""A site's training batches."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hansa.errors import UserError
from hansa.evaluate import to_device
from hansa.seeds import derive, torch_generator
from hansa.task import Dataset, Site, Task, collate, is_whole

BLOCK = 1 << 22  # bytes of rows that are gathered at once


class Batches:
    """One round's training batches; iterating again goes over the same amount of work in another order."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        hyper: Mapping[str, Any],
        purpose: tuple[int, int, str],  # the run's seed, the round, the site
        device: torch.device,
        workers: int = 0,
    ) -> None:
        self.task, self.dataset, self.device, self.workers = task, dataset, device, workers
        self.size, self.drop_last = int(hyper["batch_size"]), bool(hyper["drop_last"])
        self.purpose, self.passes = purpose, 0
        whole, rest = divmod(len(dataset), self.size)
        self.per_epoch = whole + (1 if rest and not (self.drop_last and whole) else 0)
        self.steps = int(hyper["steps"]) if "steps" in hyper else int(hyper["epochs"]) * self.per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self.after(0)

    def after(self, done: int) -> Iterator[Any]:
        """A pass as it goes on after its first `done` batches."""
        self.passes += 1
        for batch in itertools.islice(self._endless(self.passes, done), self.steps - done):
            yield self.task.batch_transform(to_device(batch, self.device))

    def table(self) -> tuple[Tensor, Tensor]:
        """The rows of a pass by their numbers, [steps, B], and how many each batch has, [steps]: the rest is padding.

        It is the first pass that `after` would give, where no other processes load rows.
        """
        self.passes += 1
        generator, n = torch_generator(*self.purpose, "batches", self.passes), len(self.dataset)
        epochs, width = -(-self.steps // self.per_epoch), min(self.size, n)
        rows = torch.zeros(epochs, self.per_epoch * width, dtype=torch.int64)
        for order in rows:
            order[:n] = torch.randperm(n, generator=generator)[: len(order)]
        counts = torch.full((self.per_epoch,), width)
        counts[-1] = min(n, self.per_epoch * width) - (self.per_epoch - 1) * width
        return rows.view(-1, width)[: self.steps], counts.repeat(epochs)[: self.steps]

    def _endless(self, number: int, done: int) -> Iterator[Any]:
        order, loading = (torch_generator(*self.purpose, of, number) for of in ("batches", "workers"))
        for rows in self._epochs(order):
            if not self.workers:
                yield from self._collated(rows[done:])
            else:  # whose own draws begin with each epoch: what is done is loaded again
                loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
                    self.dataset,  # type: ignore[arg-type]  # any map-style dataset will do
                    batch_sampler=rows,
                    num_workers=self.workers,
                    generator=loading,
                )
                yield from itertools.islice(loader, done, None)
            done = max(0, done - self.per_epoch)

    def _collated(self, rows: list[list[int]]) -> Iterator[Any]:
        """The batches; of whole tensors those of a block are gathered at once, which costs less than one by one."""
        if not is_whole(self.dataset):
            yield from (collate(self.dataset, one) for one in rows)
            return
        width = sum(t.nbytes for t in self.dataset.tensors) // max(1, len(self.dataset))  # bytes a row
        together = max(1, BLOCK // max(1, width * self.size))
        for first in range(0, len(rows), together):
            block = rows[first : first + together]
            gathered = collate(self.dataset, [row for one in block for row in one])
            yield from zip(*(t.split([len(one) for one in block]) for t in gathered), strict=True)

    def _epochs(self, generator: torch.Generator) -> Iterator[list[list[int]]]:
        """The rows of each batch of an epoch, without end."""
        while True:
            order = torch.randperm(len(self.dataset), generator=generator)
            yield [order[i * self.size : (i + 1) * self.size].tolist() for i in range(self.per_epoch)]


class OwnStream:
    """A task's own batch stream, which lives as long as the run."""

    def __init__(self, task: Task, site: Site, dataset: Dataset) -> None:
        self.task, self.site, self.dataset, self.times = task, site, dataset, 0
        self._stream = self._open()

    def _open(self) -> Iterator[Any] | None:
        self.times += 1
        return self.task.batches(self.site, self.dataset, derive(self.site.seed, self.site.name, "stream", self.times))

    def __bool__(self) -> bool:
        """Whether the task has one."""
        return self._stream is not None

    def round(self, hyper: Mapping[str, Any], device: torch.device) -> "OwnBatches":
        """The next batches of the stream, as many as the plan's steps."""
        if "steps" not in hyper:
            name = type(self.task).__name__
            raise UserError(f"[training]: task {name} has its own batches; set steps, the number of them a round")
        return OwnBatches(self, int(hyper["steps"]), device)

    def draw(self) -> Any:
        """One batch; a stream that ends is opened again."""
        for _ in range(2):
            for batch in self._stream or ():
                return batch
            self._stream = self._open()
        raise UserError(f"site {self.site.name!r}: Task.batches gives no batch")


class OwnBatches:
    """One round's share of a task's own stream."""

    def __init__(self, stream: OwnStream, steps: int, device: torch.device) -> None:
        self.stream, self.steps, self.device = stream, steps, device

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.steps):
            yield self.stream.task.batch_transform(to_device(self.stream.draw(), self.device))
