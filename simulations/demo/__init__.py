"""`hansa demo`: four hospitals on scikit-learn's breast cancer data."""

import itertools
from pathlib import Path


def run_demo(folder: Path | None) -> None:
    """Runs the demo in a folder, "hansa-demo" or the next free number by default; heavy imports wait until then."""
    from simulations.demo.show import run

    numbered = (Path("hansa-demo" if number == 1 else f"hansa-demo-{number}") for number in itertools.count(1))
    run(folder or next(path for path in numbered if not path.exists()))
