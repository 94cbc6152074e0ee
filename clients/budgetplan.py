"""`hansa budget plan`: the noise that an epsilon needs, what epsilon a noise costs, or how many rounds both allow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.appfiles import FEDERATION
from hansa.errors import UserError
from privacy.dp.accounting import MOST_ROUNDS, epsilon, rounds_for
from privacy.dp.mechanism import Event
from privacy.dp.terms import NAMES, DpTerms, mechanism_of, site_noise

Say = Callable[[str], None]
ALTERNATIVES = ({"epsilon", "noise_multiplier"}, {"epochs", "steps"})  # what is given of these replaces the other


@dataclass(frozen=True)
class Wish:
    """What the command was given; None: nothing said."""

    rows: int | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    rounds: int | None = None


def plan(app: Path | None, wish: Wish, say: Say) -> None:
    """Prints what a plan means at a site with so many rows, and what it costs.

    Args:
        app: whose federation.toml says what the wish leaves open.
        wish: the options.
        say: shows a line.

    Raises:
        UserError: something is missing, said twice, or there is no such plan.
    """
    said = _merged({} if app is None else _of_app(app), wish)
    _check(said)
    limit = said.pop("epsilon") if "rounds" not in said else None
    terms = DpTerms.of(
        {key: said[key] for key in DpTerms.model_fields if key in said} | {"rounds": said.get("rounds", 1)}
    )
    if terms.unit == "site":
        one = Event(site_noise(terms), 1.0, 1)
        say("whole sites, a sum over all in each round")
    else:
        one = mechanism_of(terms, said, said["rows"]).event
        steps, drawn = f"{one.count:,} step{'s' * (one.count != 1)} a round", f"{one.sample_rate:.4g}"
        say(f"{said['rows']:,} {NAMES[terms.unit]}, each drawn for a step with the chance {drawn}; {steps}")
    say(f"noise multiplier {one.noise_multiplier:.4g}")
    rounds = terms.rounds
    if limit is not None:
        rounds = rounds_for(limit, terms.delta, one.noise_multiplier, one.sample_rate, one.count)
        most = " or more" if rounds >= MOST_ROUNDS else ""
        say(f"epsilon = {limit:g} at delta = {terms.delta:g} buys {rounds:,} rounds{most}")
    cost = epsilon([Event(one.noise_multiplier, one.sample_rate, one.count * rounds)], terms.delta)
    remark = f" ({cost.remark})" if cost.remark else ""
    say(f"{rounds:,} rounds cost epsilon = {cost.shown} at delta = {terms.delta:g} by {cost.accountant}{remark}")


def _of_app(app: Path) -> dict[str, Any]:
    """What an app's federation.toml says of [dp], [training] and [rounds], by key."""
    from hansa.config import load

    config = load(app / FEDERATION if app.is_dir() else app)
    training, rounds = config["training"].hyper(1), config["rounds"].rounds
    work = {key: training[key] for key in ("batch_size", "steps", "epochs") if key in training}
    return {**work, "rounds": rounds, **(config["dp"].hyper(rounds) if "dp" in config else {})}


def _merged(app: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    given = {key: value for key, value in vars(wish).items() if value is not None}
    gone = {key for keys in ALTERNATIVES if keys & given.keys() for key in keys}
    if {"epsilon", "noise_multiplier"} <= given.keys():
        gone.add("rounds")
    return {"unit": "record", "clip": 1.0} | {key: value for key, value in app.items() if key not in gone} | given


def _check(said: Mapping[str, Any]) -> None:
    """Whether all is there, once."""
    sampled = said["unit"] != "site"
    needed = [("--delta", {"delta"}), ("--epsilon or --noise-multiplier", {"epsilon", "noise_multiplier"})]
    if sampled:
        needed += [("--rows", {"rows"}), ("--batch-size", {"batch_size"}), ("--epochs or --steps", {"epochs", "steps"})]
    problems = [f"{name} is missing; give it" for name, keys in needed if not keys & said.keys()]
    both, rounds = {"epsilon", "noise_multiplier"} <= said.keys(), "rounds" in said
    if both and rounds:
        problems.append("--epsilon, --noise-multiplier and --rounds: each follows from the other two; leave one out")
    if not both and not rounds:
        problems.append("--rounds is missing; give it, or both --epsilon and --noise-multiplier")
    if {"epochs", "steps"} <= said.keys():
        problems.append("--epochs and --steps: give one of them")
    if said.get("rows", 1) < 1 or not 0 < said.get("epsilon", 1.0) < float("inf"):
        problems.append("--rows and --epsilon are above 0")
    if problems:
        raise UserError(*problems)
