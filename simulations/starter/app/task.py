"""What is trained. This file is code: a site reads it, then allows the app by its digest."""

from torch import nn

import hansa

# What federation.toml [data] makes of a row: one input for a number, one for each value of a category.
INPUTS = 6
# One logit tells two classes apart; for three or more classes it takes one output each.
OUTPUTS = 1


class Predict(hansa.Task):
    """Rows, loss and metrics are Hansa's defaults; docs/tasks.md says how to write others."""

    def model(self) -> nn.Module:
        """Any torch module will do. Without hidden layer (`nn.Linear(INPUTS, OUTPUTS)`) it is logistic regression."""
        return nn.Sequential(nn.Linear(INPUTS, 16), nn.ReLU(), nn.Linear(16, OUTPUTS))
