"""A federation gives the same bits on real sites and simulated, with the same federation.toml."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation

STRATEGIES = {
    "fedavg": 'name = "fedavg"',
    "scaffold": 'name = "scaffold"',
    "fedprox": 'name = "fedprox"\nmu = 0.5',
    "fedbn": 'name = "fedbn"',
    "fedadam": 'name = "fedadam"',
    "feddyn": 'name = "feddyn"',
    "fednova": 'name = "fednova"',
    "qfedavg": 'name = "qfedavg"',
    "finetune": 'name = "finetune"\npasses = 2',
    "median": 'name = "median"',
    "cyclic": 'name = "cyclic"',
    "local-layers": 'name = "fedavg"\nlocal = ["1.*"]',
}
LONG = [pytest.param(name, marks=pytest.mark.long) for name in STRATEGIES if name != "fedavg"]


@pytest.mark.parametrize("name", ["fedavg", *LONG])
def test_deployed_equals_simulated(federation: "Federation", name: str) -> None:
    app = federation.app(name, STRATEGIES[name], quorum=1 if name == "cyclic" else 4)
    run = federation.start(app)
    federation.finished(run)
    federation.assert_as_simulated(run, app)
