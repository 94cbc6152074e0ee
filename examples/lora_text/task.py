"""Three wards teach one language model their shorthand: adapters travel, the model and the notes do not."""

from typing import Any

from model import Transformer, adapted  # type: ignore[import-not-found]  # beside this file
from text import ALPHABET, LENGTH, notes, rows  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hansa

SEEDS = {"train": 1, "test": 2}


class Notes(hansa.Task):
    """The next character of a note."""

    trainable_only = True

    def model(self) -> nn.Module:
        made: nn.Module = adapted(Transformer(len(ALPHABET), LENGTH))
        return made

    def train_data(self, site: hansa.Site) -> TensorDataset:
        return self._rows(site, "train", 200)

    def test_data(self, site: hansa.Site) -> TensorDataset:
        return self._rows(site, "test", 40)

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        (codes,) = batch
        return model(codes[:, :-1]).flatten(0, 1), codes[:, 1:].flatten()

    def _rows(self, site: hansa.Site, split: str, number: int) -> TensorDataset:
        made: TensorDataset = rows(notes(site.name, number, SEEDS[split]))
        return made
