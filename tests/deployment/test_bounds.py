"""What a site does not review, federation.toml and plans, keeps to its [bounds] or the site sits out."""

from typing import TYPE_CHECKING

import pytest

from clients.refusals import LINES, Reason
from server.store import State

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation

HASTY = """
from strategies.fedavg import FedAvg


class Hasty(FedAvg):
    def hyper(self, round):
        return {"lr": 0.5} if round == 2 else {}
"""


@pytest.mark.long
def test_a_site_sits_out_what_is_not_within_its_bounds_and_the_run_goes_on(federation: "Federation") -> None:
    """Coral's bound is below what federation.toml says, 0.1; beryl's below what the plan of round 2 says, 0.5."""
    app = federation.app("hasty", 'name = "hasty.py:Hasty"', rounds=3, quorum=2)
    (app / "hasty.py").write_text(HASTY)
    for site, most in {"amber": 1.0, "beryl": 0.2, "coral": 0.05, "dolomite": 1.0}.items():
        federation.write_site(site, apps=[app])
        federation.consortium.write_site(site, {"bounds": f'"training.lr" = {{ max = {most} }}\n'})
    run = federation.start(app)
    federation.finished(run, 120.0)
    line = f"training.lr: {LINES[Reason.BOUNDS]} (out_of_bounds)"
    assert f"coral takes no part: {line}" in federation.events(run)
    assert f"beryl took no part: {line}" in federation.events(run)
    assert [entry["what"] for entry in federation.audit("coral", run)] == ["refused"]
    assert federation.rounds(run)["took_part"].tolist() == [3, 2, 3]


@pytest.mark.long
def test_a_site_without_data_of_its_own_reads_no_file_that_federation_toml_names(federation: "Federation") -> None:
    app = federation.app("nosy", rounds=1, quorum=3)
    federation.write_site("coral", apps=[app])
    file = federation.consortium.site("coral") / "site.toml"
    before, _, after = file.read_text().partition("[data]\n")
    file.write_text(before + after[after.index("[") :])
    run = federation.start(app)
    federation.finished(run)
    assert f"coral takes no part: {LINES[Reason.DATA]} (no_data_of_its_own)" in federation.events(run)
    assert federation.state(run) is State.FINISHED
