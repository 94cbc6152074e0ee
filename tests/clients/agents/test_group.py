"""A group over two nodes gives the update of one process, whatever happens to a node."""

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hansa.processes import started

if TYPE_CHECKING:
    from tests.clients.agents.conftest import Site

NEAR = 1e-6  # of a float32 vector; in float64 only the order of additions differs
HOSTS = {"a": "127.0.0.2", "b": "127.0.0.3"}


@pytest.mark.parametrize(
    "parallel", [{"dp": 2}, pytest.param({"shard": 2}, marks=pytest.mark.long)], ids=["ddp", "fsdp2"]
)
def test_two_nodes_give_the_update_of_one_process(site: "Site", parallel: dict[str, Any]) -> None:
    alone = site.alone()
    head = site.head(parallel=parallel)
    for node, address in HOSTS.items():
        site.agent(head.address, node, address)
    group = site.group(head, head.training)
    torch.testing.assert_close(site.update(group), alone, rtol=0.0, atol=NEAR)
    assert len(site.steps(0)) == len(site.steps(1)) == 40
    assert site.steps(0)[0] != site.steps(1)[0]


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "b is gone"), pytest.param(signal.SIGSTOP, "b is gone: silent", marks=pytest.mark.long)],
)
def test_a_node_that_is_lost_in_the_midst_changes_no_update(site: "Site", number: signal.Signals, said: str) -> None:
    """The other goes on alone with the whole batch; the steps that two had kept are of no use to it."""
    alone = site.alone()
    head = site.head(node_wait=3.0, checkpoint_interval=0.1, heartbeat=60.0 if number == signal.SIGKILL else 6.0)
    for node, address in HOSTS.items():
        site.agent(head.address, node, address)
    head.wait(2, 120.0, lambda: False)
    group = site.group(head, head.training)
    with site.meanwhile(lambda: os.kill(site.agents["b"].pid, number)):
        update = site.update(group)
    torch.testing.assert_close(update, alone, rtol=0.0, atol=NEAR)
    assert group.generation == 2
    assert any(said in line for line in site.said)
    lost = site.steps(1)[-1]
    site.agents["b"].kill()
    site.until(lambda: started(lost) is None)
    site.agent(head.address, "b", HOSTS["b"])  # it comes back, and is taken in at the next plan
    head.wait(2, 120.0, lambda: False)
    torch.testing.assert_close(site.update(group), alone, rtol=0.0, atol=NEAR)
    assert len(group.pids) == 2
