"""Logistic regression for heart disease at four hospitals."""

from torch import nn

import hansa


class Heart(hansa.Task):
    """13 features of a patient to one logit of disease; loss, accuracy and AUC are the defaults for a single logit."""

    def model(self) -> nn.Module:
        return nn.Linear(13, 1)
