"""Ray's actors as a crew: long-lived, one message each a round."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from math import ceil
from types import ModuleType
from typing import Any
from uuid import uuid4

from hansa.errors import RunFailed, UserError
from hansa.taskpack import packed
from simulations.engines.crew import DEATHS, pickled
from simulations.engines.member import Order
from simulations.engines.partial import Partial
from simulations.engines.rayactor import Actor, Luggage
from simulations.engines.rayconfig import RayTable
from simulations.engines.setting import Setting
from simulations.engines.shares import told


class RayCrew:
    """Actors, each of whom gets a share of the sites asked and gives one partial sum.

    A plan's vectors go into Ray's store once a round, and from there once to each machine. What of an actor dies, with
    its machine or alone, Ray starts anew, and has it compute its share again: nothing of that was counted.

    Args:
        setting: what is simulated; its memory is in a folder.
        table: [simulation.ray].
        number: of actors.
        threads: of torch, in each.

    Raises:
        UserError: Ray is not installed, does not answer, or has no room for the actors.
    """

    def __init__(self, setting: Setting, table: RayTable, number: int, threads: int) -> None:
        assert setting.memory is not None
        self._ray = imported()
        cpus = table.cpus or threads
        folder = setting.memory.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = folder / f".ray-{uuid4().hex}"
        content = pickled(replace(setting, memory=folder))
        self._actors: list[Any] = []
        self._ours = connect(self._ray, table, ceil(number * cpus))
        try:
            self._mark.touch()
            check_room(self._ray.cluster_resources(), number, cpus, table.gpus)
            luggage = Luggage(version("hansa"), packed(), content, self._mark, threads, table.gpus > 0)
            self._luggage = self._ray.put(luggage)  # kept: an actor that is started anew asks for it again
            takes = {"num_cpus": cpus, "num_gpus": table.gpus}
            kind = self._ray.remote(max_restarts=-1, max_task_retries=DEATHS - 1, **takes)(Actor)
            self._actors = [kind.remote(self._luggage) for _ in range(number)]
        except BaseException:
            self.close()
            raise

    def sums(self, order: Order, dealt: Sequence[Sequence[str]]) -> Iterator[Partial]:
        """The actors' partial sums as they come.

        Raises:
            UserError: what an actor says of the task, the strategy or the data.
            RunFailed: actors died again and again on one share.
        """
        sent = self._ray.put(order)
        at_work = {self._actors[at].work.remote(sent, mine): at for at, mine in enumerate(dealt) if mine}
        while at_work:
            (done, *_), _ = self._ray.wait(list(at_work))
            at = at_work.pop(done)
            try:
                answer: Partial | Exception = self._ray.get(done)
            except self._ray.exceptions.RayActorError as error:
                mend = "is there memory enough? take fewer [simulation] workers"
                who = f"actor {at + 1} of {len(self._actors)}"
                raise RunFailed(f"{who} died again on sites {told(dealt[at])}; {mend}") from error
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def close(self) -> None:
        """Ends the actors at once, and Ray where it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self._mark.unlink(missing_ok=True)
        if self._ours:
            self._ray.shutdown()
            self._ours = False


def imported() -> ModuleType:
    """Ray, which tells nobody that it is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # an actor without a GPU sees them as before
    try:
        import ray
    except ImportError as error:
        raise UserError(
            '[simulation] engine: "ray" needs the package ray; pip install "hansa[ray]", or take "processes"'
        ) from error
    found: ModuleType = ray
    return found


def connect(ray: ModuleType, table: RayTable, cpus: int) -> bool:
    """Connects to Ray, unless the program is; whether that is to be ended with the run."""
    if ray.is_initialized():
        return False
    own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if table.address is None else {}
    try:
        ray.init(address=table.address or "local", logging_level="ERROR", configure_logging=False, **own)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        where = f'no Ray answers at "{table.address}"' if table.address else "Ray does not start here"
        raise UserError(f"[simulation.ray] address: {where}: {why}") from error
    return True


def check_room(there: dict[str, float], number: int, cpus: float, gpus: float) -> None:
    """Whether a cluster can have so many actors at all; busy ones are waited for."""
    room = int(there.get("CPU", 0.0) / cpus)
    if gpus:
        room = min(room, int(there.get("GPU", 0.0) / gpus + 1e-9))
    if number > room:
        each = f"{cpus:g} cores" + (f" and {gpus:g} GPUs" if gpus else "")
        raise UserError(f"[simulation] workers: {number} actors of {each} each; Ray has room for {room}")
