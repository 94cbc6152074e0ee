"""An actor of Ray's: a worker that may be on another machine, with its own copy of the user's files."""

import pickle
import platform
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from hansa.blame import own_code
from hansa.device import choose_device, using_threads
from hansa.errors import UserError
from hansa.taskpack import Packed, unpack
from simulations.engines.member import Order
from simulations.engines.partial import Own, Partial, partial
from simulations.engines.setting import Setting, Sites
from simulations.engines.siteloop import SiteLoop


@dataclass(frozen=True)
class Luggage:
    """What an actor begins with."""

    hansa: str  # the version
    files: Sequence[Packed]  # the user's
    setting: bytes  # a pickle of Setting, by names in those files
    mark: Path  # a file in the folder of the sites' memory
    threads: int  # of torch
    gpu: bool  # whether Ray gives it one


class Actor:
    """Lets its share of the sites work, and answers with one partial sum.

    Args:
        luggage: what it begins with; it is opened with the first order, so that what is wrong with it can be told.
    """

    def __init__(self, luggage: Luggage) -> None:
        self._luggage, self._own = luggage, Own()
        self._loop: SiteLoop | None = None

    def work(self, order: Order, mine: Sequence[str]) -> Partial | Exception:
        """One partial sum, or what went wrong, told as it is told in one process."""
        try:
            with using_threads(self._luggage.threads):
                return self._sum(order, mine)
        except UserError as error:
            return UserError(*error.problems)  # without what it came of, which may not pickle
        except Exception as error:
            where = f"in an actor on {platform.node()}"
            return RuntimeError(f"{where}:\n{''.join(traceback.format_exception(error))}")

    def _sum(self, order: Order, mine: Sequence[str]) -> Partial:
        loop = self._loop = self._loop or self._begin()
        setting = loop.setting
        with own_code(type(setting.task), type(setting.strategy)), warnings.catch_warnings():
            # Ray's store hands out its own memory, in which nobody may write; nobody writes into a plan's vectors.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            found = partial(loop.work(order.taken(), order.asked, mine), self._own.taken())
        if found.memory and not self._luggage.mark.exists():
            folder, here = self._luggage.mark.parent, platform.node()
            mend = "put [simulation] runs on a disk that all machines share"
            raise UserError(f"[simulation.ray]: {here} does not see {folder}, where sites keep their memory; {mend}")
        return found

    def _begin(self) -> SiteLoop:
        here = version("hansa")
        if here != self._luggage.hansa:
            raise UserError(
                f"[simulation.ray]: {platform.node()} has hansa {here}, this machine {self._luggage.hansa}; "
                "install the same version on both"
            )
        # Kept as long as the process: the user's code may read files beside it at any time.
        self._files = tempfile.TemporaryDirectory(prefix="hansa-ray-")
        unpack(self._luggage.files, Path(self._files.name))
        setting: Setting = pickle.loads(self._luggage.setting)
        if self._luggage.gpu:
            setting = replace(setting, device=choose_device("cuda"))
        return SiteLoop(setting, Sites(setting, setting.bench()), self._own)
