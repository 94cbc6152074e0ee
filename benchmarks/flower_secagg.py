"""Flower's SecAgg+ in one process, without a network: its own client mod and its own workflow, a stage after the other.

Every pair of sites is connected and the threshold is that of Hansa, more than two thirds: `num_shares=1.0` with
`reconstruction_threshold=threshold(n)/n`. A smaller `num_shares` makes SecAgg+ faster, but fewer traitors and fewer
dropouts then break it: that is another protection than Hansa's, and no peer for it. All else is Flower's default:
values in 2^22 steps, sums in int64 modulo 2^32.

The grid hands each message to the site's mod and takes the answer, so that a site's seconds are those of the mod, less
the app's under it; the server's are those of the workflow, less those in the grid. Whatever a network would add is in
neither.
"""

import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # before Flower reads them

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow, WorkflowState
from flwr.supercore.task_identity import TaskIdentity

ROWS = 500  # of each site
STEPS = ("setup_stage", "share_keys_stage", "collect_masked_vectors_stage", "unmask_stage")


class Clock:
    """Seconds so far, on the wall and of the processor."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        self.wall += time.perf_counter() - self._started[0]
        self.cpu += time.process_time() - self._started[1]


class Everybody(FedAvg):
    """Asks all sites there are, and keeps what the workflow makes of their answers."""

    def __init__(self, proxies: Iterable[GridClientProxy], parameters: Any) -> None:
        super().__init__()
        self.proxies, self.parameters, self.mean = proxies, parameters, np.zeros(0)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        return [(proxy, FitIns(self.parameters, {})) for proxy in self.proxies]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        if failures:
            raise SystemExit(f"Flower: {failures[0]}")
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return results[0][1].parameters, {}


class Rehearsal:
    """What stands in for a grid: the sites' mods in this process.

    Args:
        vector: each site's update.
        sites: their numbers.
        gone: those whose upload never comes.
    """

    def __init__(self, vector: np.ndarray, sites: list[int], gone: set[int]) -> None:
        self.contexts = {site: Context(1, site, {}, RecordDict(), {}) for site in sites}
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), ROWS, {})
        self.result, self.gone, self.asleep = result, gone, Clock()
        self.clocks: defaultdict[int, Clock] = defaultdict(Clock)
        self.sent: defaultdict[int, int] = defaultdict(int)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        with self.asleep:
            return [self._answer(message) for message in messages if not self._is_gone(message)]

    def _is_gone(self, message: Message) -> bool:
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        late = Stage.all().index(stage) >= Stage.all().index(Stage.COLLECT_MASKED_VECTORS)
        return late and message.metadata.dst_node_id in self.gone

    def _answer(self, message: Message) -> Message:
        """The mod takes its message apart, and all have one record in common: over a network each gets its own."""
        site, content, app = message.metadata.dst_node_id, RecordDict(), Clock()
        content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(
            dict(message.content.config_records[RECORD_KEY_CONFIGS])
        )
        own = Message(content, dst_node_id=site, message_type="train", group_id="1")

        def train(message: Message, context: Context) -> Message:
            with app:
                return Message(compat.fitres_to_recorddict(self.result, keep_input=True), reply_to=message)

        clock = self.clocks[site]
        with clock:
            answer = secaggplus_mod(own, self.contexts[site], train)
        clock.wall, clock.cpu = clock.wall - app.wall, clock.cpu - app.cpu
        self.sent[site] += recorddict_to_proto(answer.content).ByteSize()
        return answer


def attempt(n: int, gone: int, threshold: int, vector: np.ndarray) -> tuple[list[Clock], Clock, int]:
    """A whole attempt; its mean is held against the plain one.

    Args:
        n: sites.
        gone: how many of them are so after they have shared.
        threshold: shares that open a secret.
        vector: of float32, each site's update.

    Returns:
        The clocks of the sites that stay, that of the server, and bytes that one site sends.
    """
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    sites = random.Random(1).sample(range(1, 1 << 62), n)
    grid, server = Rehearsal(vector, sites, set(sites[n - gone :])), Clock()
    proxies = [GridClientProxy(site, grid, 1) for site in sites]  # type: ignore[arg-type]
    strategy = Everybody(proxies, ndarrays_to_parameters([np.zeros(1, np.float32)]))
    base = Context(1, 0, {}, RecordDict(), {})
    base.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    base.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(strategy.parameters, True)
    context = LegacyContext(base, strategy=strategy, client_manager=SimpleClientManager())
    workflow, state = SecAggPlusWorkflow(1.0, threshold / n), WorkflowState()
    for step in STEPS:
        with server:
            went_on = getattr(workflow, step)(grid, context, state)
        if not went_on:
            raise SystemExit(f"Flower's SecAgg+ stopped in {step}")
    server.wall, server.cpu = server.wall - grid.asleep.wall, server.cpu - grid.asleep.cpu
    if not np.abs(strategy.mean - vector).max() < 1e-4:
        raise SystemExit("Flower's mean is not the plain mean")
    return [grid.clocks[site] for site in sites[: n - gone]], server, grid.sent[sites[0]]
