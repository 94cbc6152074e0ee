"""pfl-research on PyTorch, rows at hand, no evaluation; under torchrun each process takes its part of a cohort."""

import itertools
import sys
import time
import types
from typing import Any

import numpy as np
import torch

if not hasattr(torch.distributed, "reduce_op"):  # an alias that newer versions of torch lack
    torch.distributed.reduce_op = torch.distributed.ReduceOp  # type: ignore[attr-defined]

from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import Visits, finish, model


class Clock(TrainingProcessCallback):
    """Notes when each round ended."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def after_central_iteration(self, *arguments: Any, **named: Any) -> tuple[bool, Metrics]:
        self.ended.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    torch.set_num_threads(1)
    visits = Visits(sys.argv[1])
    X, y = torch.from_numpy(visits.X), torch.from_numpy(visits.y)
    net = model(visits.name)
    net.load_state_dict(dict(zip(net.state_dict(), map(torch.from_numpy, visits.weights), strict=True)))
    criterion = torch.nn.CrossEntropyLoss()
    net.loss = types.MethodType(lambda self, x, y, eval=False: criterion(self(x), y), net)
    net.metrics = types.MethodType(lambda self, x, y, eval=False: {"loss": Weighted(0.0, len(y))}, net)

    def rows(visit: int) -> Dataset:
        return Dataset((X[visits.rows(visit)], y[visits.rows(visit)]), user_id=visit)

    order = itertools.cycle(range(len(visits.start) - 1))
    weights = {visit: visits.count(visit) for visit in range(len(visits.start) - 1)}
    data = FederatedDataset(rows, lambda: next(order), user_id_to_weight=weights)
    backend = SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()])
    plan = NNAlgorithmParams(
        central_num_iterations=visits.rounds,
        evaluation_frequency=10**9,
        train_cohort_size=visits.cohort,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=visits.lr, local_batch_size=visits.batch_size)
    central = torch.optim.SGD(net.parameters(), lr=1.0)
    wrapped = PyTorchModel(net, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr), central)
    clock = Clock()
    FederatedAveraging().run(plan, backend, wrapped, local, None, [clock], send_metrics_to_platform=False)
    if get_framework_module().distributed.global_rank == 0:
        finish(sys.argv[2], clock.ended, [np.asarray(one.detach()) for one in net.state_dict().values()])


if __name__ == "__main__":
    main()
