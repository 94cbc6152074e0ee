"""Made-up rows, by which an app without data of its own runs at once."""

from pathlib import Path

import numpy as np
import pandas as pd

from hansa.seeds import numpy_generator

SITES = ("boston", "lyon", "osaka")
ROWS = 120  # a site


def write_example(folder: Path) -> None:
    """A CSV for each site: who falls ill follows from age and pressure, more often where people smoke; and chance."""
    folder.mkdir()
    for number, site in enumerate(SITES):
        random = numpy_generator(0, "example", site)
        age = random.integers(30, 85, ROWS)
        pressure = (random.normal(110, 15, ROWS) + age / 3).round()
        smoker = random.choice(
            ["never", "former", "current"], ROWS, p=np.array([[5, 3, 2], [4, 4, 2], [3, 3, 4]])[number] / 10
        )
        sex = random.choice(["f", "m"], ROWS)
        risk = (age - 57) / 10 + (pressure - 130) / 15 + 1.5 * (smoker == "current") + random.normal(0, 0.7, ROWS)
        ill = np.where(risk > 0.3, "yes", "no")
        rows = pd.DataFrame({"age": age, "pressure": pressure, "sex": sex, "smoker": smoker, "ill": ill})
        rows.to_csv(folder / f"{site}.csv", index=False)
