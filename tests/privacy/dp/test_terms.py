"""[dp]: what is refused and in which words, what rides in a plan, and what a site makes of it."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config import load
from hansa.errors import UserError
from privacy.dp.accounting import epsilon
from privacy.dp.config import DpTable
from privacy.dp.mechanism import DpSgd, Event
from privacy.dp.terms import DpTerms, mechanism_of, site_noise

HEAD = '[federation]\nname = "f"\ntask = "task.py:T"\n'
GOOD = 'unit = "record"\nepsilon = 5.0\ndelta = 1e-4\nclip = 1.0\n'
TABLE: dict[str, Any] = {"unit": "record", "epsilon": 5.0, "delta": 1e-4, "clip": 1.0}


def problems(folder: Path, text: str) -> list[str]:
    """What is said of a federation.toml."""
    path = folder / "federation.toml"
    path.write_text(f"{HEAD}{text}")
    try:
        load(path, without={"simulation", "data"})
    except UserError as error:
        return list(error.problems)
    return []


def test_without_the_table_there_is_no_privacy(tmp_path: Path) -> None:
    assert problems(tmp_path, "") == []
    assert "dp" not in load(tmp_path / "federation.toml", without={"simulation"})


def test_a_good_table_is_taken(tmp_path: Path) -> None:
    assert problems(tmp_path, f"[dp]\n{GOOD}") == []
    assert load(tmp_path / "federation.toml", without={"simulation"})["dp"] == DpTable(**TABLE)


def test_what_is_missing_is_told_key_by_key(tmp_path: Path) -> None:
    assert problems(tmp_path, "[dp]\n") == [
        'federation.toml [dp] unit: is missing; give "record", "group" or "site" (who is protected)',
        "federation.toml [dp] delta: is missing; give a number above 0 and below 1, well below 1 / (rows of a site)",
        "federation.toml [dp] clip: is missing; give a number of at least 1e-10 "
        "(the L2 norm up to which one unit counts)",
    ]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (GOOD + "noise_multiplier = 1.0", "epsilon and noise_multiplier are both set; keep one: the other"),
        (
            GOOD.replace("epsilon = 5.0", ""),
            "epsilon and noise_multiplier are both missing; set one: the other",
        ),
        (
            GOOD.replace("record", "group"),
            'unit = "group" needs group_column, whose value names the group of a row',
        ),
        (GOOD.replace("record", "site") + 'group_column = "id"', 'group_column has no effect with unit = "site"'),
        (GOOD.replace("record", "site") + "acknowledge_repeats = true", 'has no effect with unit = "site"; remove it'),
        (GOOD + "adaptive = {quantile = 0.5}", 'adaptive is for unit = "site", not "record"; remove it'),
        (
            GOOD.replace("record", "site") + "adaptive = {quantile = 1.0}",
            "adaptive] quantile: must be less than 1",
        ),
        (GOOD + "weights = {}", 'weights is an empty table; give a number for each site, or "uniform"'),
        (GOOD + "weights = {a = 1.5}", "a: must be a whole number; got 1.5"),
        (GOOD + "weights = {a = 0}", "a: must be at least 1; got 0"),
        (GOOD + 'weights = "rows"', 'weights: must be "uniform" or a table of whole numbers above 0 by site'),
        (GOOD.replace("1e-4", "1.0"), "delta: must be a number above 0 and below 1, well below"),
        (GOOD.replace("1e-4", "0.0"), "delta: must be a number above 0 and below 1, well below"),
        (GOOD.replace("clip = 1.0", "clip = 0"), "clip: must be a number of at least 1e-10"),
        (GOOD.replace("5.0", "-1"), "epsilon: must be greater than 0; got -1"),
        (GOOD.replace("epsilon = 5.0", "noise_multiplier = 0"), "noise_multiplier: must be at least 0.01; got 0"),
        (
            GOOD.replace('"record"', '"rows"'),
            'unit: must be "record", "group" or "site" (who is protected); got',
        ),
    ],
)
def test_each_rule_in_words(table: str, said: str, tmp_path: Path) -> None:
    (line,) = problems(tmp_path, f"[dp]\n{table}\n")
    assert line.startswith("federation.toml [dp")
    assert said in line


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ("[training]\nclip_norm = 1.0", "[training] clip_norm: [dp] clip = 1 bounds each record's gradient; remove it"),
        (
            '[training]\nprecision = "float16"',
            "[training] precision: under [dp] gradients are those of float32",
        ),
        ("[training]\ndrop_last = true", "[training] drop_last: under [dp] batches are drawn by chance"),
        ("[rounds]\npatience = 3", "[rounds] patience: under [dp] no metric of a site's rows leaves it"),
        ('[rounds]\nkeep = "best"', "[rounds] keep: under [dp] no metric of a site's rows leaves it"),
    ],
)
def test_what_does_not_go_with_the_other_tables(others: str, said: str, tmp_path: Path) -> None:
    (line,) = problems(tmp_path, f"[dp]\n{GOOD}{others}\n")
    assert line.startswith("federation.toml [")
    assert said in line


def test_whole_sites_may_train_as_they_like(tmp_path: Path) -> None:
    training = '[training]\nclip_norm = 1.0\ndrop_last = true\nprecision = "bfloat16"\n'
    assert problems(tmp_path, f"[dp]\n{GOOD.replace('record', 'site')}{training}") == []


def test_what_rides_in_a_plan_is_read_back_as_it_was() -> None:
    weighty = DpTable(**{**TABLE, "unit": "site", "weights": {"a": 3}, "adaptive": {"quantile": 0.4}})
    for table in (DpTable(**TABLE), weighty):
        terms = DpTerms.of(table.hyper(20))
        assert terms.rounds == 20
        assert terms.model_dump(exclude={"rounds"}) == table.model_dump()


def test_a_plan_that_lies_is_told_in_lines() -> None:
    with pytest.raises(UserError) as told:
        DpTerms.of({"unit": "record", "epsilon": float("nan"), "clip": 1.0, "rounds": 0, "extra": 1})
    assert len(told.value.problems) == 4
    assert "the plan's [dp] rounds: must be at least 1; got 0" in told.value.problems
    with pytest.raises(UserError, match=r"the plan's \[dp\]: must be a table; got 3"):
        DpTerms.of(3)


def terms(**changes: Any) -> DpTerms:
    return DpTerms.of({**TABLE, "rounds": 20, **changes})


def test_a_site_finds_rate_steps_and_noise_itself() -> None:
    mechanism = mechanism_of(terms(), {"batch_size": 64, "epochs": 1}, 199)
    sigma = mechanism.noise_multiplier
    assert mechanism == DpSgd("record", 199, 64 / 199, sigma, 1.0, 3)
    assert 4.95 < epsilon([Event(sigma, 64 / 199, 60)], 1e-4).epsilon <= 5.0


def test_noise_may_be_given_in_place_of_epsilon() -> None:
    mechanism = mechanism_of(terms(epsilon=None, noise_multiplier=1.1), {"batch_size": 64, "steps": 7}, 199)
    assert (mechanism.noise_multiplier, mechanism.steps) == (1.1, 7)


@pytest.mark.parametrize(("batch", "epochs", "steps"), [(64, 1, 3), (64, 2, 6), (1000, 3, 3), (199, 1, 1), (150, 1, 1)])
def test_epochs_are_as_many_draws_of_each_unit(batch: int, epochs: int, steps: int) -> None:
    of = mechanism_of(terms(epsilon=None, noise_multiplier=1.0), {"batch_size": batch, "epochs": epochs}, 199)
    assert (of.steps, of.sample_rate) == (steps, min(1.0, batch / 199))


def test_the_rate_is_that_of_the_units_whatever_the_number_of_batches() -> None:
    """Opacus takes it from the length of a weighted sampler: 1 / 8 for batches of 16, where 16 of 10^4 are drawn."""
    given = terms(epsilon=None, noise_multiplier=1.0, delta=1e-5)
    mechanism = mechanism_of(given, {"batch_size": 16, "steps": 8}, 10_000)
    assert mechanism.event == Event(1.0, 0.0016, 8)
    assert epsilon([mechanism.event], 1e-5).epsilon < 0.1 < 1.0 < epsilon([Event(1.0, 0.125, 8)], 1e-5).epsilon


def test_groups_are_counted_and_not_rows() -> None:
    given = terms(unit="group", group_column="patient", epsilon=None, noise_multiplier=1.0)
    assert mechanism_of(given, {"batch_size": 10, "steps": 1}, 40).sample_rate == 0.25


@pytest.mark.parametrize("units", [10_000, 10_001])
def test_a_delta_that_gives_one_away_is_refused(units: int) -> None:
    with pytest.raises(UserError, match=rf"delta = 0.0001 is not below 1 / {units}, with {units} records here"):
        mechanism_of(terms(), {"batch_size": 64, "epochs": 1}, units)


@pytest.mark.parametrize(
    ("hyper", "said"),
    [
        ({"batch_size": 0, "epochs": 1}, "batch_size must be a whole number of at least 1; got 0"),
        ({"batch_size": 64, "epochs": 1.5}, "epochs must be a whole number of at least 1; got 1.5"),
        ({"batch_size": 64, "steps": True}, "steps must be a whole number of at least 1; got True"),
        ({"batch_size": 64}, "epochs must be a whole number of at least 1; got None"),
        ({"batch_size": 64, "steps": 1 << 39}, "train less"),
    ],
)
def test_a_plan_without_batches_is_refused(hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        mechanism_of(terms(), hyper, 199)


def test_a_site_without_rows_sits_out() -> None:
    with pytest.raises(UserError, match="no records to train on here"):
        mechanism_of(terms(), {"batch_size": 64, "epochs": 1}, 0)


def test_whole_sites_claim_no_amplification() -> None:
    sigma = site_noise(terms(unit="site"))
    assert 4.95 < epsilon([Event(sigma, 1.0, 20)], 1e-4).epsilon <= 5.0
    assert site_noise(terms(unit="site", epsilon=None, noise_multiplier=3.0)) == 3.0
    with pytest.raises(ValueError, match=r"no DP-SGD"):
        mechanism_of(terms(unit="site"), {"batch_size": 64, "epochs": 1}, 199)
