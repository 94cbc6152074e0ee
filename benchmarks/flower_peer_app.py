"""The Flower app of flower_peer.py: bytes down to every node and as many up, timed at the server."""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


def payload(size: int, round: int) -> ArrayRecord:
    return ArrayRecord({"vector": Array(np.full(max(1, size // 4), round, np.float32))})


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Writes the seconds of each exchange, of nothing and of the whole in turn."""
    size, repeats = int(context.run_config["size"]), int(context.run_config["repeats"])
    while len(nodes := list(grid.get_node_ids())) < int(context.run_config["nodes"]):
        time.sleep(0.2)
    seconds: dict[str, list[float]] = {"nothing": [], "whole": []}
    for round in range(repeats):
        for what, bytes_ in (("nothing", 0), ("whole", size)):
            content = RecordDict({"vector": payload(bytes_, round), "said": ConfigRecord({"size": bytes_})})
            messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
            began = time.perf_counter()
            replies = list(grid.send_and_receive(messages))
            seconds[what].append(time.perf_counter() - began)
            if any(reply.has_error() for reply in replies) or len(replies) < len(nodes):
                raise RuntimeError("a node has failed")
    part = Path(os.environ["FLOWER_PEER_RESULT"] + ".part")
    part.write_text(json.dumps(seconds))
    part.rename(os.environ["FLOWER_PEER_RESULT"])


@client.train()
def train(message: Message, context: Context) -> Message:
    """As many bytes back."""
    said = message.content["said"]
    assert isinstance(said, ConfigRecord)
    size = said["size"]
    assert isinstance(size, int)
    return Message(RecordDict({"vector": payload(size, -1)}), reply_to=message)
