"""A Flower app that does nothing: Flower's own FedAvg, clients that send back what they got, timed at the server."""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Writes the seconds of all rounds, from when the nodes are there."""
    nodes, rounds = int(context.run_config["nodes"]), int(context.run_config["repeats"])
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.2)
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    model = ArrayRecord({"w": Array(np.zeros(int(context.run_config["size"]), np.float32))})
    began = time.perf_counter()
    result = strategy.start(grid=grid, initial_arrays=model, num_rounds=rounds)
    seconds = time.perf_counter() - began
    if len(result.evaluate_metrics_clientapp) < rounds:
        raise RuntimeError("a node has failed")
    part = Path(os.environ["FLOWER_PEER_RESULT"] + ".part")
    part.write_text(json.dumps({"rounds": [seconds]}))
    part.rename(os.environ["FLOWER_PEER_RESULT"])


@client.train()
def train(message: Message, context: Context) -> Message:
    """The model as it came."""
    arrays = message.content["arrays"]
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """A score, and nothing done for it."""
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.0})}), reply_to=message)
