"""`hansa invite`: the file by which a site joins."""

from datetime import datetime
from pathlib import Path

from hansa.errors import UserError
from hansa.files import whole, write_private
from hansa.kit import DAYS, Facts, make_kit
from hansa.roster import MOST_NODES
from hansa.tables import A_NAME, is_name
from server.consortium import Consortium, open_consortium
from server.events import ALL
from server.people import taken

INVITATIONS = "invitations"
MOST_DAYS = 365


def invite(folder: Path, site: str, now: datetime, days: int = DAYS, nodes: int = 1) -> list[str]:
    """Writes an invitation kit for a site that is to join.

    Args:
        folder: that `hansa provision` made.
        site: its name.
        now: with its zone.
        days: for which the invitation is good.
        nodes: that the site is to have: in so many runs can it take part at once.

    Returns:
        What is to be done with it: a line each.

    Raises:
        UserError: a name that is wrong or taken, too many days or nodes, or the folder is not in order.
    """
    own = open_consortium(folder, now)
    check_new_name(own, site)
    if not own.table.gate:
        raise UserError(f"{folder}: its server has no public port ([consortium] gate); add a site by hansa provision")
    if not 1 <= days <= MOST_DAYS:
        raise UserError(f"--days {days}: must be between 1 and {MOST_DAYS}")
    check_nodes(nodes)
    facts = Facts(
        hansa_kit=1,
        consortium=own.table.name,
        server=own.table.server,
        ca=own.authority.certificate.decode("ascii"),
        roster_key=own.roster_public.decode("ascii").strip(),
    )
    kit = make_kit(facts, site, own.roster_key, now, days, nodes)
    path = folder / INVITATIONS / f"{site}.kit"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with whole(path) as temporary:
        temporary.unlink(missing_ok=True)
        write_private(temporary, kit.to_bytes())
    until = kit.invited.invitation.expires
    return [
        f"{path}: for {site}, good once and until {until:%Y-%m-%d %H:%M} UTC; whoever has it may ask in {site}'s name",
        f"there: hansa site join {path.name}; then here: hansa approve {folder}",
    ]


def check_nodes(nodes: int) -> None:
    """Whether a site may have so many nodes.

    Raises:
        UserError: it may not.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise UserError(f"--nodes {nodes}: must be between 1 and {MOST_NODES}")


def check_new_name(own: Consortium, site: str) -> None:
    """Whether a new site may have a name.

    Raises:
        UserError: it may not.
    """
    if not is_name(site) or site == ALL:
        why = f"must be {A_NAME}" if site != ALL else "stands for all sites in a report; choose another name"
        raise UserError(f"{site}: {why}")
    if holder := taken(own, own.path.parent).get(site.casefold()):
        raise UserError(
            f"{site}: {own.roster.consortium} has {holder} already; choose another name, or revoke that one"
        )
