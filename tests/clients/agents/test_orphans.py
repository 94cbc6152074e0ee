"""Nothing lives on when the process with the head is killed, or an agent is: wherever the ranks are."""

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hansa.processes import MARK, marked

if TYPE_CHECKING:
    from tests.clients.agents.conftest import Site

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from contextlib import ExitStack
from pathlib import Path
from tests.clients.agents.conftest import Site
with ExitStack() as stack:
    site = Site(Path(sys.argv[1]), stack)
    site.pause(0.2)
    head = site.head()
    (site.trouble / "address").write_text(head.address)
    site.update(site.group(head, head.training))
"""


@pytest.mark.parametrize("dies", ["head", pytest.param("agent", marks=pytest.mark.long)])
def test_ranks_on_other_machines_die_with_the_head_and_with_their_agent(
    site: "Site", tmp_path: Path, dies: str
) -> None:
    own, mark = tmp_path / "own", secrets.token_hex(8)
    own.mkdir()
    site.folder, site.trouble = own / "site", own / "trouble"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TROUBLE": str(site.trouble)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(own)], env=env)
    site.stack.callback(holder.wait)
    site.stack.callback(holder.kill)
    site.until((site.trouble / "address").exists)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        for node, address in (("a", "127.0.0.2"), ("b", "127.0.0.3")):
            site.agent((site.trouble / "address").read_text(), node, address)
    site.until(lambda: len(site.steps(1)) > 2)
    agents = {agent.pid for agent in site.agents.values()}
    assert len(set(marked(mark)) - agents) >= 2  # its ranks
    if dies == "head":
        holder.kill()
        site.until(lambda: set(marked(mark)) == agents)  # they wait for another head
    else:
        site.agents["b"].kill()
        site.until(lambda: len(set(marked(mark)) - {site.agents["b"].pid}) == 1)  # and a's ranks are ended as well
