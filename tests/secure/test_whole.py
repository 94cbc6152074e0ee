"""A run under secure aggregation over real connections and processes."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.secure.conftest import SITES, assert_same

if TYPE_CHECKING:
    from tests.secure.conftest import Federation


@pytest.mark.long
def test_deployed_equals_simulated_and_no_secret_leaves_a_site(
    federation: "Federation", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same coins are given to both. Masks, shares, keys and updates are looked for in all that was written."""
    app = federation.app("plain")
    run = federation.serve(app)
    assert federation.dropped("plain") == set()
    assert_same(run, federation.simulated(app, set(), monkeypatch))
    assert_nothing_leaked(federation)


def assert_nothing_leaked(federation: "Federation") -> None:
    secrets = {bytes.fromhex(line) for site in SITES for line in (federation.secrets / site).read_text().split()}
    keys = [(federation.consortium.site(site) / "sign.key").read_bytes().split(b"\n")[1] for site in SITES]
    # Of each secret its first 16 bytes, raw, in hex and in base64, so that no form of it is missed.
    forms = [form for secret in secrets for form in (secret[:16], secret[:16].hex().encode())]
    assert len(secrets) > 20
    for path in files(federation.consortium.folder):
        found = path.read_bytes()
        assert not [form for form in forms if form in found], path
        assert path.name == "sign.key" or not [key for key in keys if key in found], path


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.long
def test_a_site_that_is_killed_in_any_step_leaves_the_round_to_the_others(
    federation: "Federation", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose update had not come is not in the sum; whose had is, though its process is gone before it is opened.

    One that is back before the keys are told begins afresh. One that missed a round starts from another memory than the
    others: it gives nothing in the next, and from then on starts as they do.
    """
    app = federation.app("dies", 'name = "scaffold"', rounds=9, quorum=3)
    dies = {"amber": {2: "advertise", 8: "unmask"}, "beryl": {3: "share"}, "coral": {5: "masked"}}
    run = federation.serve(app, {**dies, "dolomite": {7: "sign"}})
    assert {path.name for path in federation.secrets.glob("*.*")} == {
        "amber.advertise",
        "amber.unmask",
        "beryl.share",
        "coral.masked",
        "dolomite.sign",
    }
    assert federation.dropped("dies") == {(3, "beryl"), (5, "coral")}
    rounds = federation.store.rounds("dies")
    assert rounds["void"].isna().all()
    assert rounds.query("kind == 'train'")["took_part"].tolist() == [4, 4, 3, 4, 3, 4, 4, 4, 4]
    notes = federation.store.events("dies")
    told = notes[notes["text"].str.contains("1 of 4 sites gave nothing")]["round"].tolist()
    assert told == [4, 6]
    assert_same(run, federation.simulated(app, federation.dropped("dies"), monkeypatch))
