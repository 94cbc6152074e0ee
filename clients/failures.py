"""What a site tells the server when something fails: a code and a fixed text, nothing of the site's own.

The full text, with its paths and values, stays in the site's log.
"""

from enum import StrEnum


class Failure(StrEnum):
    """What failed."""

    APP = "app_unusable"
    INPUT = "input_unusable"
    TRAINING = "training_failed"
    DIED = "training_died"
    NODES = "nodes_missing"
    SITS_OUT = "sits_out"
    SITE = "site_failed"
    SUM = "not_summable"
    SECURE = "secure_refused"


LINES = {
    Failure.APP: "the app's task or federation.toml cannot be used at this site; its log says why",
    Failure.INPUT: "the site's rows, memory or settings cannot be used; its log says why",
    Failure.TRAINING: "training ended in an error; the site's log says which",
    Failure.DIED: "the training process died, and died again",
    Failure.NODES: "too few of the site's machines for training are there",
    Failure.SITS_OUT: "the site has no rows for this plan",
    Failure.SUM: "the site's update cannot be summed under secure aggregation; its log says why",
    Failure.SECURE: "the site does not go on with this attempt at secure aggregation; its log says why",
    Failure.SITE: "the site ended in an error; its log says which",
}
