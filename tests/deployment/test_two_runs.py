"""A site of two nodes is in two runs at once; a third one waits for it, and says so."""

from typing import TYPE_CHECKING

import pytest

from server.store import DONE, State

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation


@pytest.mark.long
def test_two_runs_at_once_by_one_port_and_a_third_that_waits_all_give_what_their_simulations_give(
    public: "Federation",
) -> None:
    apps = {name: public.app(name, rounds=12, pause=1.0) for name in ("one", "two")}
    apps["three"] = public.app("three", rounds=2)
    for site in public.sites:
        public.write_site(site, apps=list(apps.values()))
    connected = "".join(f"site {site}: connected\n" for site in public.sites)
    public.until(lambda: connected in public.status(), "both nodes of each site are connected")
    for run in ("one", "two"):
        public.start(apps[run])
    public.until(lambda: min(len(public.rounds(run)) for run in ("one", "two")) >= 1, "both have done a round", 400)
    assert {public.state(run) for run in ("one", "two")} == {State.RUNNING}

    public.start(apps["three"])
    waiting = [f"{site} is busy with runs one and two; waiting" for site in public.sites]
    public.until(lambda: public.state("three"), "the third run is there")
    public.until(lambda: all(line in public.events("three") for line in waiting), "the third run says why it waits")
    assert {public.state(run) for run in apps} == {State.RUNNING}
    assert all(f"site {site}: connected, in runs one and two\n" in public.status() for site in public.sites)
    public.until(lambda: len(public.rounds("three")) >= 1, "the third run has begun", 400)
    assert {public.state("one"), public.state("two")} & {*DONE}

    for run, app in apps.items():
        public.finished(run, 400)
        assert public.rounds(run)["took_part"].tolist() == [4] * (2 if run == "three" else 12)
        assert " left: " not in public.events(run)
        public.assert_as_simulated(run, app)
    assert all(public.events("three").count(line) == 1 for line in waiting)
