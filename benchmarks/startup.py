"""How long `hansa --help` takes, beside Python doing nothing: medians of one sitting."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 15
HANSA = [str(Path(sys.executable).with_name("hansa")), "--help"]
NOTHING = [sys.executable, "-c", "pass"]


def seconds(command: list[str]) -> float:
    """The median of some runs."""
    taken = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    """Prints a table and a line RESULT."""
    result = {"help_s": round(seconds(HANSA), 3), "python_s": round(seconds(NOTHING), 3)}
    print(f"hansa --help     {result['help_s']:.3f} s\npython, nothing  {result['python_s']:.3f} s")
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
