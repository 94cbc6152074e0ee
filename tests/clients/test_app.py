"""What the ClientApp believes of an invitation."""

import pytest
from flwr.app import ConfigRecord, RecordDict

from clients.app import invited
from hansa.errors import UserError


def invitation(run: str) -> RecordDict:
    return RecordDict({"invitation": ConfigRecord({"address": "127.0.0.1:9", "run": run, "epoch": 1, "token": "00"})})


@pytest.mark.parametrize("run", ["..", ".", "", "../../elsewhere", "/tmp", "a/b", "a\n"])
def test_a_run_s_name_cannot_lead_out_of_the_site_s_folders(run: str) -> None:
    """The site names its spool by it, and removes that at the end of the run."""
    with pytest.raises(UserError, match="gives no name for a run"):
        invited(invitation(run))


def test_an_invitation_is_taken_as_it_stands() -> None:
    assert invited(invitation("heart-20260101-120000-ab12"))["run"] == "heart-20260101-120000-ab12"
