"""What the control end does, by verb. Who may ask for it stands in `server.roles.ACTS`."""

from collections.abc import Mapping

from server import runverbs, siteverbs
from server.asking import Handler

VERBS: Mapping[str, Handler] = {**runverbs.VERBS, **siteverbs.VERBS}
