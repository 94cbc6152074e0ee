"""Why a site refuses: each refusal has a reason code that the server prints, and a fixed text."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a site refuses."""

    APP = "app_not_allowed"
    FEDERATION = "federation_unusable"
    CODE = "code_not_in_app"
    DATA = "no_data_of_its_own"
    BOUNDS = "out_of_bounds"
    UNPROTECTED = "unprotected_not_allowed"
    SITES = "too_few_sites"
    CLIP = "clip_too_large"
    RING = "ring_too_small"
    TERMS = "terms_of_no_app"
    PLAN = "plan_absurd"
    SEED = "seed_of_no_app"
    PRIVATE = "no_differential_privacy"
    BUDGET = "budget_spent"
    LEDGER = "ledger_unusable"
    UNITS = "rows_unfit"
    NOISE = "noise_of_server"


# What leaves the site: fixed texts, so that nothing of the site's own can be in them.
LINES = {
    Reason.APP: "this app is not among those that the site allows ([apps] allowed in its site.toml)",
    Reason.FEDERATION: "the app's federation.toml cannot be read; the site's log says why",
    Reason.CODE: "federation.toml names a file of code that is not in the app",
    Reason.DATA: "federation.toml says where rows are, but only the site may: it needs a [data] table in its site.toml",
    Reason.BOUNDS: "a number is not within what the site allows ([bounds] in its site.toml)",
    Reason.UNPROTECTED: "the site lets no update out without secure aggregation ([policy] allow_unprotected in its "
    "site.toml)",
    Reason.SITES: "a sum over so few sites may not be opened ([policy] min_sites and allow_two_sites in the site's "
    "site.toml)",
    Reason.CLIP: "[privacy] clip is larger than the site allows ([policy] max_clip in its site.toml)",
    Reason.RING: "[privacy] ring_bits is less than the site allows ([policy] min_ring_bits in its site.toml)",
    Reason.TERMS: "the server sums otherwise than [privacy] in the app's federation.toml says, or more often",
    Reason.PLAN: "the plan's model or its hyper-parameters are not finite",
    Reason.SEED: "the plan's seed is not that of the app's federation.toml, and rows would be split otherwise by it",
    Reason.PRIVATE: "[dp] is not as the app's federation.toml has it, or not as the site asks: for the unit that its "
    "[budget] names, for groups by its own [data] split.by",
    Reason.BUDGET: "it would take more than the site's privacy budget ([budget] in its site.toml) has left",
    Reason.LEDGER: "the site's ledger of what it released cannot be used; the site's log says why",
    Reason.UNITS: "[dp] does not fit the site's rows; the site's log says why",
    Reason.NOISE: "only the server would add noise, and the site does not rely on that ([policy] trust_server_noise in "
    "its site.toml)",
}


class Refused(Exception):
    """A refusal: `code` and the exception's text may leave the site, `detail` stays in its own log.

    Args:
        code: why.
        detail: one line more, for the site's own people.
        key: of federation.toml, which may be named outside; its value and the site's bounds stay here.
    """

    def __init__(self, code: Reason, detail: str, key: str = "") -> None:
        super().__init__(f"{key}: {LINES[code]}" if key else LINES[code])
        self.code = code
        self.detail = detail


def refuse_unbounded(broken: str | None, what: str) -> None:
    """Raises Refused if a key is not within [bounds].

    Args:
        broken: the key; None: all are within.
        what: where it stands.
    """
    if broken is not None:
        raise Refused(Reason.BOUNDS, f"{what}: {broken} is not within [bounds]", broken)
