"""What a hostile server may ask of a site's budget, and what a site enters: against the real ledger."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clients.child import Ready
from clients.refusals import Reason, Refused
from clients.sitefile import load_site_file
from clients.spending import LEDGERS, Spending
from clients.sumrules import Said
from hansa.wire.link_pb2 import Plan
from privacy.config import PrivacyTable
from privacy.dp.accounting import epsilon
from privacy.dp.config import DpTable
from privacy.dp.ledger import Account, ledgers, read_account
from privacy.dp.mechanism import Event

ROUNDS, ROWS, DELTA = 5, 200, 1e-5
DP = {"unit": "record", "epsilon": 1.0, "delta": DELTA, "clip": 1.0}
GROUP = {**DP, "unit": "group", "group_column": "patient"}
TRAINING = {"batch_size": 20, "steps": 4, "lr": 0.1}
READY = Ready("", "", {}, 0, (), ROWS, 50)


class Site:
    """A site with an app's [dp], and what it noted."""

    def __init__(self, folder: Path, dp: Mapping[str, Any] | None = DP, budget: str = "", more: str = "") -> None:
        self.folder, self.noted = folder, list[str]()
        self.table = None if dp is None else DpTable.model_validate(dp)
        text = '[site]\nname = "here"\nserver = "there:9092"\n' + more
        text += f"[budget]\ndelta = {DELTA}\n{budget}\n" if budget else ""
        (folder / "site.toml").write_text(text)
        said = Said(PrivacyTable(), ROUNDS, self.table, seed=7)
        file = load_site_file(folder / "site.toml")
        self.spending = Spending(folder / LEDGERS, "run", file, said, lambda *a, **k: self.noted.append(a[1]), print)

    def plan(self, dp: Any = None, seed: int = 7, kind: str = "train", **hyper: Any) -> Plan:
        told = self.table.hyper(ROUNDS) if self.table and dp is None else dp
        values = {**TRAINING, **hyper, **({} if told is None else {"dp": told})}
        return Plan(id="1-train-valid", run="run", round=1, seed=seed, kind=kind, hyper=json.dumps(values))

    def spend(self, plan: Plan, left: bool = True, ready: Ready = READY) -> Plan:
        with self.spending.reserved(plan, ready) as reserve:
            reserve.left = left
        return reserve.plan

    def account(self) -> Account:
        (path,) = ledgers(self.folder / LEDGERS)
        return read_account(path)


def refusal(site: Site, plan: Plan, ready: Ready = READY) -> Reason:
    with pytest.raises(Refused) as refused:
        site.spend(plan, ready=ready)
    return refused.value.code


ALONE = Ready("", "", {}, 0, (), ROWS, None)


def test_a_whole_run_spends_its_target_and_not_more(tmp_path: Path) -> None:
    site = Site(tmp_path, budget="epsilon = 1.0")
    for _ in range(ROUNDS):
        given = json.loads(site.spend(site.plan(), ready=ALONE).hyper)["dp"]
        assert "epsilon" not in given
    spent = site.account().cost().epsilon
    assert 0.99 < spent <= 1.0
    event = Event(given["noise_multiplier"], 0.1, 4 * ROUNDS)
    assert spent == pytest.approx(epsilon([event], DELTA).epsilon)
    assert refusal(site, site.plan(), ALONE) is Reason.BUDGET
    assert site.account().cost().epsilon == spent
    assert site.noted == ["reserved"] * ROUNDS + ["refused"]


def test_what_never_left_is_given_back_and_what_broke_off_after_it_left_is_not(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.spend(site.plan(), left=False, ready=ALONE)
    assert site.account().cost().epsilon == 0
    with suppress(OSError), site.spending.reserved(site.plan(), ALONE) as reserve:
        reserve.left = True
        raise OSError("gone")
    assert site.account().cost().epsilon > 0


@pytest.mark.parametrize(
    "changed",
    [
        {"clip": 1e-9},
        {"epsilon": 2.0},
        {"rounds": 1},
        {"delta": 1e-4},
        {"unit": "site"},
        {"acknowledge_repeats": True},
        {"weights": {"here": 5}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_plan_s_terms_are_those_of_the_app(tmp_path: Path, changed: dict[str, Any]) -> None:
    site = Site(tmp_path)
    told = {**DpTable.model_validate(DP).hyper(ROUNDS), **changed}
    assert refusal(site, site.plan(told), ALONE) is Reason.PRIVATE
    assert not (tmp_path / LEDGERS).exists()


def test_a_plan_without_terms_is_refused_where_the_app_has_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    bare = Plan(id="1", round=1, seed=7, kind="train", hyper=json.dumps(TRAINING))
    assert refusal(site, bare, ALONE) is Reason.PRIVATE


@pytest.mark.parametrize("dp", [None, GROUP, {**DP, "unit": "site", "epsilon": None, "noise_multiplier": 1.0}])
def test_a_budget_is_of_one_unit_and_lets_nothing_else_out(tmp_path: Path, dp: Any) -> None:
    site = Site(tmp_path, dp, budget="epsilon = 9.0")
    assert refusal(site, site.plan()) is Reason.PRIVATE


def test_a_site_may_rely_on_no_server_s_noise(tmp_path: Path) -> None:
    whole = {"unit": "site", "noise_multiplier": 1.0, "delta": DELTA, "clip": 1.0}
    site = Site(tmp_path, whole, more="[policy]\ntrust_server_noise = false\n")
    assert refusal(site, site.plan()) is Reason.NOISE


def test_groups_are_the_site_s_and_have_one_ledger(tmp_path: Path) -> None:
    data = '[data]\ncsv = "rows.csv"\ntarget = "ill"\nsplit = { by = "patient" }\n'
    site = Site(tmp_path, GROUP, more=data)
    site.spend(site.plan())
    assert site.account().subject.column == "patient"
    other = Site(tmp_path, {**GROUP, "group_column": "fresh"}, more=data)
    assert refusal(other, other.plan()) is Reason.PRIVATE


def test_a_name_of_the_app_s_begins_no_ledger_anew(tmp_path: Path) -> None:
    for name in ("one", "two"):
        site = Site(tmp_path, {**GROUP, "group_column": name})
        site.spend(site.plan())
    assert len(site.account().debits) == 2


def test_another_seed_would_split_the_rows_otherwise(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert refusal(site, site.plan(seed=8), ALONE) is Reason.SEED


def test_repeated_ids_are_the_site_s_to_pass_over(tmp_path: Path) -> None:
    dp = {**DP, "acknowledge_repeats": True}
    strict = Site(tmp_path, dp, budget="epsilon = 9.0")
    assert refusal(strict, strict.plan()) is Reason.UNITS
    lax = Site(tmp_path, dp, budget="epsilon = 9.0\nallow_repeats = true")
    lax.spend(lax.plan())


def test_a_plan_that_only_scores_costs_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, budget="epsilon = 9.0")
    site.spend(site.plan(kind="evaluate"), ready=ALONE)
    assert not (tmp_path / LEDGERS).exists()


@pytest.mark.parametrize("hyper", ["[]", "7", "{", '{"dp": null}', '{"dp": []}', "[" * 100_000])
def test_what_cannot_be_read_is_refused(tmp_path: Path, hyper: str) -> None:
    site = Site(tmp_path)
    plan = Plan(id="1", round=1, seed=7, kind="train", hyper=hyper)
    assert refusal(site, plan, ALONE) in (Reason.FEDERATION, Reason.PRIVATE)


def test_a_damaged_ledger_lets_nothing_out(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.spend(site.plan(), ready=ALONE)
    (path,) = ledgers(tmp_path / LEDGERS)
    path.write_bytes(path.read_bytes().replace(b"reserve", b"reserva"))
    assert refusal(site, site.plan(), ALONE) is Reason.LEDGER
