"""`hansa demo`: four hospitals on scikit-learn's breast cancer data."""

from pathlib import Path


def run_demo(folder: Path) -> None:
    """Runs the demo in a folder; heavy imports wait until then."""
    from simulations.demo.show import run

    run(folder)
