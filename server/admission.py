"""Who may connect to the SuperLink: the sites of the roster, as it changes."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hansa.errors import UserError
from hansa.fresh import Fresh
from hansa.roster import Roster
from hansa.startup import CA, ROSTER, ROSTER_KEY, ROSTER_SIGNATURE, read_roster
from server.flower import Control, Refused, Unreachable

LOOKS = 4  # at a roster that cannot be read, until it is told: before, it may be in the middle of a change

Say = Callable[[str], None]


def admit(control: Control, roster: Roster, say: Say) -> None:
    """Registers the sites of the roster with the SuperLink, and those no longer that are not in it."""
    nodes = {node.key: node for node in control.nodes()}
    keys = {node.encode(): site.name for site in roster.sites for node in site.nodes}
    former = [nodes[key] for key in nodes.keys() - keys.keys()]
    for node in former:
        control.unregister(node.id)
    for name in sorted({node.name for node in former}):
        what = "" if roster.member(name) is None else "an old node of "
        say(f"{what}{name} is not in the roster any more, and may not connect")
    for key in keys.keys() - nodes.keys():
        control.register(keys[key], key)


class Admission:
    """Admits anew when the roster changes.

    Args:
        folder: the server's.
        control: of the SuperLink.
        say: shows a line.
        admitted: the roster whose sites are registered.
    """

    def __init__(self, folder: Path, control: Control, say: Say, admitted: Roster) -> None:
        self.control, self.say, self.admitted = control, say, admitted
        files = [folder / name for name in (ROSTER, ROSTER_SIGNATURE, ROSTER_KEY, CA)]
        self._roster = Fresh(files, lambda: read_roster(folder))
        self._failed = 0  # looks, one after the other

    def look(self) -> None:
        """Looks whether there is another roster."""
        try:
            roster = self._roster.get()
        except UserError as error:
            self._failed += 1
            if self._failed == LOOKS:
                self.say(f"warning: {error}; until then, who was let in before is let in")
            return
        self._failed = 0
        if roster != self.admitted:
            with suppress(Unreachable, Refused):  # the SuperLink is being started again
                self._admit(roster)

    def _admit(self, roster: Roster) -> None:
        admit(self.control, roster, self.say)
        new = {site.name for site in roster.sites} - {site.name for site in self.admitted.sites}
        self.say(f"the roster is now of edition {roster.edition}; new: {', '.join(sorted(new)) or 'no site'}")
        self.admitted = roster
