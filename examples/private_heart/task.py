"""Heart disease under differential privacy: nothing but noisy gradients may come of a patient."""

import torch
from torch import Tensor, nn

import hansa

COLUMNS = {  # in the order of the data: what a doctor would call a usual value, and a usual distance from it
    "age": (50, 10),
    "male": (0.5, 0.5),
    "blood pressure": (130, 20),  # mmHg, at rest
    "cholesterol": (220, 100),  # mg/dl
    "fasting sugar above 120 mg/dl": (0.5, 0.5),
    "heart rate": (140, 25),  # the highest reached
    "angina on exercise": (0.5, 0.5),
    "ST depression": (1, 1),
    "chest pain of kind 2": (0.5, 0.5),
    "chest pain of kind 3": (0.5, 0.5),
    "chest pain of kind 4": (0.5, 0.5),
    "ECG at rest of kind 1": (0.5, 0.5),
    "ECG at rest of kind 2": (0.5, 0.5),
}


class Usual(nn.Module):
    """Scales the columns by public knowledge. Means and deviations of the rows would tell of each patient in them."""

    def __init__(self) -> None:
        super().__init__()
        middle, distance = torch.tensor(list(COLUMNS.values())).T
        self.register_buffer("middle", middle, persistent=False)
        self.register_buffer("distance", distance, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.get_buffer("middle")) / self.get_buffer("distance")


class PrivateHeart(hansa.Task):
    """Logistic regression; loss, accuracy and AUC are the defaults for a single logit."""

    def model(self) -> nn.Module:
        return nn.Sequential(Usual(), nn.Linear(len(COLUMNS), 1))

    def valid_data(self, site: hansa.Site) -> None:
        """Every row trains: rounds are fixed beforehand, for scores on patients would cost privacy too."""
        return None
