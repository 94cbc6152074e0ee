"""How far a rank is with the training of a plan, kept on disk: after a restart it goes on there, bit for bit the same.

Every rank keeps its own two newest steps, since one may be a step ahead of another when the group is lost. All ask at
the same steps whether it is time, for only the clocks differ, and the answer must not.
"""

import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hansa.files import whole

KEPT = 2  # of the newest steps
NONE = -1  # in place of a step
State = Mapping[str, Any]  # tensors and plain values, nested


class Progress:
    """One rank's steps of one plan.

    Args:
        folder: of this plan, the same for all ranks of a machine.
        rank: from 0.
        interval: seconds between two steps that are kept.
        least: the least of the ranks' numbers, which all must ask for.
        clock: in seconds.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        interval: float,
        least: Callable[[int], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.rank, self.interval, self.least, self.clock = folder, rank, interval, least, clock
        self._from, self._since, self._next = 0, clock(), 1  # the step last kept, its time, when to look again

    def due(self, step: int) -> bool:
        """Whether a step that has been taken is to be kept; to be asked after each, by all ranks."""
        if step < self._next:
            return False
        took, steps = self.clock() - self._since, step - self._from
        wait = int(steps * (self.interval - took) / took) if took > 0 else steps
        wait = self.least(max(0, min(wait, steps)))  # no longer than it took hitherto: the pace may change
        self._next = step + wait
        if not wait:
            self._begin(step)
        return not wait

    def save(self, step: int, own: State, common: State) -> None:
        """Keeps a step.

        Args:
            step: how many have been taken.
            own: what this rank has for itself.
            common: what all ranks have alike; the first one writes it.
        """
        states = {"own": own} if self.rank else {"common": common, "own": own}
        for name, state in states.items():
            with whole(self._path(step, name)) as temporary:
                torch.save(state, temporary)
        for old in self._steps()[:-KEPT]:
            self._forget(old)

    def load(self, device: torch.device) -> tuple[int, State, State] | None:
        """The newest step that all ranks have kept, with its own and its common state; None: there is none.

        Args:
            device: where tensors go.
        """
        step = self.least(max(self._steps(), default=NONE))
        try:
            found = None if step == NONE else [self._read(step, name, device) for name in ("own", "common")]
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            found = None
        if not self.least(int(found is not None)) or found is None:
            return None
        for later in self._steps():
            if later > step:
                self._forget(later)
        self._begin(step)
        return step, *found

    def _begin(self, step: int) -> None:
        self._from, self._since, self._next = step, self.clock(), step + 1

    def _steps(self) -> list[int]:
        """The steps that this rank has kept, in order."""
        return sorted(int(path.stem.split("-")[0]) for path in self.folder.glob(f"*-own.{self.rank}"))

    def _path(self, step: int, name: str) -> Path:
        return self.folder / f"{step:012d}-{name}.{self.rank if name == 'own' else 0}"

    def _read(self, step: int, name: str, device: torch.device) -> Any:
        return torch.load(self._path(step, name), map_location=device, weights_only=True)

    def _forget(self, step: int) -> None:
        self._path(step, "own").unlink()
        if not self.rank:
            self._path(step, "common").unlink()
