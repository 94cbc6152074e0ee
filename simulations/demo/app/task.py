"""Is a tumour malignant? Thirty measurements of a cell's nucleus tell."""

from torch import nn

import hansa


class BreastCancer(hansa.Task):
    """Logistic regression; data, loss and metrics are Hansa's defaults."""

    def model(self) -> nn.Module:
        """Thirty standardised measurements in, one logit out."""
        return nn.Linear(30, 1)
