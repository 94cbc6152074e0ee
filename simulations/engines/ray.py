"""Actors of Ray's, on this machine or on a cluster: each computes a share of the sites, by the plain loop."""

import torch

from hansa.records import Plan
from simulations.engines.crew import Workers
from simulations.engines.processes import ProcessesEngine
from simulations.engines.raycrew import RayCrew
from simulations.engines.setting import Setting


class RayEngine(ProcessesEngine):
    """The same bits as the plain loop's, whatever the number of actors, on machines of one kind."""

    @classmethod
    def suits(cls, setting: Setting) -> bool:
        """It is for what one machine cannot do, and only where it is asked for."""
        return False

    def _begin(self, plan: Plan) -> Workers:
        return RayCrew(self._kept(), self.setting.ray, self.workers, torch.get_num_threads())
