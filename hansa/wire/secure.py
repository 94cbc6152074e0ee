"""What both ends say alike of a plan that is answered under secure aggregation."""

import hashlib
import json

from hansa.wire.link_pb2 import Plan

PURPOSES = frozenset({"train-valid", "evaluate-valid", "evaluate-test"})
PARAMS = "params"  # the vector of a plan that is its model, as `hansa.codec` names it
PERSONAL = "personal_"  # begins the name of a metric of a site's own model


def plan_digest(plan: Plan) -> bytes:
    """SHA-256 over all that the sites of a plan have in common: its model, its hyper-parameters, what it is for.

    It is the model's digest in an attempt's terms, so that sites which were told different things refuse each other.
    """
    said = [plan.run, plan.seed, plan.round, plan.kind, plan.split, plan.hyper, _vectors(plan)]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).digest()


def model_digest(plan: Plan) -> str:
    """Of all vectors of a plan, in hex: the same wherever the same model is asked about."""
    return hashlib.sha256(json.dumps(_vectors(plan), separators=(",", ":")).encode()).hexdigest()


def purpose_of(plan: Plan) -> str:
    """What a round is for, as `privacy.secure.purpose` has it; there are no others than `PURPOSES`."""
    return f"{plan.kind}-{plan.split}"


def version_of(plan: Plan) -> str:
    """Under which version a site stages its memory in a round, as `hansa.records.Plan.version` has it."""
    params = next((digest for name, digest in _vectors(plan) if name == PARAMS), "")
    return f"{plan.round:06d}-{params[:16]}"


def has(name: str, start: str) -> bool:
    """Whether a site that starts from a version of memory has a metric: those of its own model need one."""
    return bool(start) or not name.partition("/")[2].startswith(PERSONAL)


def _vectors(plan: Plan) -> list[tuple[str, str]]:
    return [(blob.name, (blob.sha256 or hashlib.sha256(blob.data).digest()).hex()) for blob in plan.vectors]
