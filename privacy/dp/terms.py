"""The terms of differential privacy as they ride in a plan, and what they mean at a site.

A site believes nothing else that a server says of privacy: from these terms, the plan's batches and its own number of
units it finds the sample rate, the steps and the noise itself, the same in each round.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError

from hansa.errors import UserError
from hansa.words import spoken
from privacy.dp.config import DpTable, Whole
from privacy.dp.mechanism import DpSgd

MOST_STEPS = 1 << 40  # of a run, beyond which nobody trains
HYPER = "dp"  # where they are among the hyper-parameters of a plan
NAMES = {"record": "records", "group": "groups", "site": "sites"}


class DpTerms(DpTable):
    """[dp] as a plan has it: see `DpTable.hyper`."""

    rounds: Whole  # of the run, in each of which a site does the same

    @classmethod
    def of(cls, said: Any) -> Self:
        """Reads `plan.hyper["dp"]`.

        Raises:
            UserError: terms that are wrong, a line a problem.
        """
        try:
            return cls.model_validate(said)
        except ValidationError as error:
            lines = [(".".join(map(str, one["loc"])), spoken(one)) for one in error.errors(include_url=False)]
            raise UserError(*(f"the plan's [dp]{f' {key}' if key else ''}: {text}" for key, text in lines)) from None


def riding(dp: DpTable | None, rounds: int) -> dict[str, Any]:
    """What [dp] adds to the hyper-parameters of each plan of a run of so many rounds."""
    return {} if dp is None else {HYPER: dp.hyper(rounds)}


def terms_in(hyper: Mapping[str, Any]) -> DpTerms | None:
    """The terms that ride in a plan's hyper-parameters; None: it is not under differential privacy.

    Raises:
        UserError: they are wrong.
    """
    return DpTerms.of(hyper[HYPER]) if HYPER in hyper else None


def mechanism_of(terms: DpTerms, hyper: Mapping[str, Any], units: int) -> DpSgd:
    """What a plan means at a site.

    Args:
        terms: with unit "record" or "group".
        hyper: the plan's: batch_size and steps or epochs, as `TrainingTable.hyper` writes them.
        units: that the site trains on.

    Raises:
        UserError: no units, a delta that protects nobody here, a plan that is not one, or an epsilon out of reach.
    """
    if terms.unit == "site":
        raise ValueError("the update of a whole site is no DP-SGD")
    if units < 1:
        raise UserError(f"[dp]: no {NAMES[terms.unit]} to train on here; this site sits out")
    if terms.delta * units >= 1:
        raise UserError(
            f"[dp] delta = {terms.delta:g} is not below 1 / {units}, with {units} {NAMES[terms.unit]} here: it would "
            "allow to give one of them away; choose a smaller one"
        )
    rate = min(1.0, _whole(hyper, "batch_size") / units)
    steps = _whole(hyper, "steps") if "steps" in hyper else max(1, round(_whole(hyper, "epochs") / rate))
    if steps * terms.rounds > MOST_STEPS:
        raise UserError(f"the plan: {steps:,} steps in each of {terms.rounds:,} rounds; train less")
    return DpSgd(terms.unit, units, rate, _noise(terms, rate, steps * terms.rounds), terms.clip, steps)


def mechanism_for(terms: DpTerms, hyper: Mapping[str, Any], rows: int, groups: int | None) -> DpSgd:
    """`mechanism_of` at a site with so many rows of so many groups.

    Args:
        terms: see `mechanism_of`.
        hyper: see `mechanism_of`.
        rows: of training.
        groups: whose they are; None: no id says it.

    Raises:
        UserError: there are no ids where the terms need them, or ids that they pass over; see `mechanism_of`.
    """
    if terms.unit == "record" and groups is not None and groups < rows and not terms.acknowledge_repeats:
        raise UserError(
            f'[dp] unit = "record": {rows} training rows are of {groups} ids ([data] split.by), and who has several is '
            'protected less; set unit = "group" and group_column to the ids\' column, or acknowledge_repeats = true'
        )
    if terms.unit == "group" and groups is None:
        raise UserError(
            f'[dp] unit = "group": nothing says whose a row is; set by = "{terms.group_column}" in [data] split, or '
            "give the task's rows an attribute groups"
        )
    return mechanism_of(terms, hyper, rows if terms.unit == "record" else groups or 0)


def weight_of(terms: DpTable, site: str) -> int:
    """A site's public weight.

    Raises:
        UserError: the terms give it none.
    """
    if terms.weights == "uniform":
        return 1
    if site not in terms.weights:
        raise UserError(f'[dp] weights: no number for site {site!r}; add one, or set weights = "uniform"')
    return terms.weights[site]


def public_weight(hyper: Mapping[str, Any], site: str) -> int | None:
    """The weight at which a site's zeros count, where it is protected as a whole; None: they count for nothing.

    The noise of such a sum is reckoned with the weights of all sites that are in it, whatever they gave.

    Args:
        hyper: the plan's hyper-parameters.
        site: its name.

    Raises:
        UserError: the terms are wrong, or give it none.
    """
    terms = terms_in(hyper)
    return weight_of(terms, site) if terms is not None and terms.unit == "site" else None


def site_noise(terms: DpTerms) -> float:
    """The noise multiplier of each round's sum over whole sites. No amplification is claimed, whoever is asked.

    Raises:
        UserError: an epsilon out of reach.
    """
    return _noise(terms, 1.0, terms.rounds)


def _noise(terms: DpTerms, rate: float, count: int) -> float:
    if terms.noise_multiplier is not None:
        return terms.noise_multiplier
    assert terms.epsilon is not None  # the table has one of both
    from privacy.dp.accounting import noise_multiplier_for  # a second to import: not for those who need none

    return noise_multiplier_for(terms.epsilon, terms.delta, rate, count)


def _whole(hyper: Mapping[str, Any], key: str) -> int:
    value = hyper.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_STEPS:
        raise UserError(f"the plan: {key} must be a whole number of at least 1; got {value!r}")
    return value
