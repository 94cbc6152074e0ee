"""Flower's simulation on Ray: an actor a core, model and rows kept in each, no DataLoader, no evaluation."""

import os
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import Visits, finish, model

VISITS, OUT = sys.argv[1:3]
client, server = ClientApp(), ServerApp()


def site_of(path: str) -> tuple[Visits, Any, Any, Any]:
    """What an actor keeps."""
    import builtins

    kept = getattr(builtins, "_kept", None)
    if kept is None:
        torch.set_num_threads(1)
        visits = Visits(path)
        kept = visits, model(visits.name), torch.from_numpy(visits.X), torch.from_numpy(visits.y)
        builtins._kept = kept  # type: ignore[attr-defined]  # Flower ships this module anew with each message
    return kept


@client.train()
def train(message: Message, context: Any) -> Message:
    visits, net, X, y = site_of(str(message.content["config"]["visits"]))
    visit = int(message.content["config"]["visit"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=visits.lr)
    for rows in visits.batches(visit):
        optimizer.zero_grad()
        F.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": visits.count(visit)})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """FedAvg over the visits."""

    def __init__(self, visits: Visits) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=2)
        self.visits, self.began = visits, list[float]()

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Message]:
        self.began.append(time.perf_counter())
        nodes, messages = list(grid.get_node_ids()), []
        for visit in self.visits.round(server_round - 1):
            own = ConfigRecord({"visit": visit, "visits": VISITS})
            content = RecordDict({"arrays": arrays, "config": own})
            messages.append(Message(content=content, message_type="train", dst_node_id=nodes[visit % len(nodes)]))
        return messages


@server.main()
def main(grid: Any, context: Any) -> None:
    visits = Visits(VISITS)
    while len(list(grid.get_node_ids())) < visits.sites:
        time.sleep(0.1)
    net = model(visits.name)
    state = dict(zip(net.state_dict(), map(torch.from_numpy, visits.weights), strict=True))
    strategy = Timed(visits)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(state), num_rounds=visits.rounds)
    ended = [*strategy.began[1:], time.perf_counter()]
    finish(OUT, ended, [one.numpy() for one in result.arrays.to_torch_state_dict().values()])


if __name__ == "__main__":
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": os.cpu_count()}}
    run_simulation(server, client, num_supernodes=Visits(VISITS).sites, backend_config=backend)
