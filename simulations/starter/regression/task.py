"""What is trained. This file is code: a site reads it, then allows the app by its digest."""

from typing import Any

from torch import Tensor, nn

import hansa

# What federation.toml [data] makes of a row: one input for a number, one for each value of a category.
INPUTS = 6
# Of the target, in its own unit: the model predicts how many deviations a row is away from the mean.
MEAN, DEVIATION = 0.0, 1.0


class Predict(hansa.Task):
    """Rows and metrics are Hansa's defaults; docs/tasks.md says how to write others."""

    kind = "regression"

    def model(self) -> nn.Module:
        """Any torch module will do. Without hidden layer (`nn.Linear(INPUTS, 1)`) it is linear regression."""
        return nn.Sequential(nn.Linear(INPUTS, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Prediction and target in the target's unit, so that the metrics are too."""
        inputs, target = batch
        return model(inputs) * DEVIATION + MEAN, target

    def loss(self, output: Any, target: Any) -> Tensor:
        """The squared error in deviations, so that the steps do not depend on the unit."""
        return super().loss(output / DEVIATION, target / DEVIATION)
