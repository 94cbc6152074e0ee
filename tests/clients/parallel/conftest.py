"""Ranks that are started once a session, one group for each number of them."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hansa.errors import UserError

HERE = Path(__file__).parent
DEADLINE = 300.0  # seconds for one case

Ask = Callable[..., Any]


class Pool:
    """W ranks; what is asked of them they all do."""

    def __init__(self, world: int, log: Path) -> None:
        paths = [str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), *paths])}
        command = [sys.executable, str(HERE / "pool.py"), str(world)]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
            )

    def ask(self, case: str, **arguments: Any) -> Any:
        """What rank 0 found.

        Raises:
            UserError: as the ranks did.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([case, arguments]).encode() + b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], DEADLINE)[0]:
            pytest.fail(f"{case}: the ranks gave no answer")
        said = json.loads(self.process.stdout.readline() or '{"error": "the ranks are gone"}')
        if "refused" in said:
            raise UserError(said["refused"])
        assert "error" not in said, said["error"]
        return said["found"]

    def stop(self) -> None:
        """Ends them by closing what they listen to."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Pool]]:
    """The ranks of a number of them, started when they are first asked for."""
    made: dict[int, Pool] = {}
    folder = tmp_path_factory.mktemp("ranks")

    def pool(world: int) -> Pool:
        if world not in made or made[world].process.poll() is not None:
            made[world] = Pool(world, folder / f"{world}.log")
        return made[world]

    yield pool
    for one in made.values():
        one.stop()
