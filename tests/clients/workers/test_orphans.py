"""Nothing lives on when the process that holds the group is killed, wherever the ranks are."""

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hansa.processes import MARK, marked

if TYPE_CHECKING:
    from tests.clients.workers.conftest import Site

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from pathlib import Path
from tests.clients.workers.conftest import Site
site = Site(Path(sys.argv[1]), Path(sys.argv[2]), made=True)
group = site.group(procs=2, num_workers=1)
(site.trouble / "ready").touch()
if sys.argv[3] == "idle":
    sys.stdin.read()
site.update(group)
"""


@pytest.mark.parametrize("what", ["idle", "in a step"])
def test_ranks_and_what_they_started_die_with_the_light_process(site: "Site", what: str) -> None:
    mark = secrets.token_hex(8)
    site.pause(0.2)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(site.folder), str(site.trouble), what],
        env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
    )
    try:
        begun = (lambda: (site.trouble / "ready").exists()) if what == "idle" else (lambda: len(site.steps(1)) > 2)
        site.until(begun)
        assert len(marked(mark)) >= 3
    finally:
        holder.kill()
        holder.communicate()
    site.until(lambda: not marked(mark))
