"""What both ends say alike of a plan that is answered under secure aggregation."""

import hashlib
import json

from hansa.wire.link_pb2 import Plan


def plan_digest(plan: Plan) -> bytes:
    """SHA-256 over all that the sites of a plan have in common: its model, its hyper-parameters, what it is for.

    It is the model's digest in an attempt's terms, so that sites which were told different things refuse each other.
    """
    vectors = [[blob.name, (blob.sha256 or hashlib.sha256(blob.data).digest()).hex()] for blob in plan.vectors]
    said = [plan.run, plan.seed, plan.round, plan.kind, plan.split, plan.hyper, vectors]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).digest()


def purpose_of(plan: Plan) -> str:
    """What a round is for, as `privacy.secure.purpose` has it."""
    return f"{plan.kind}-{plan.split}"
