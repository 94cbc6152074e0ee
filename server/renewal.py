"""`hansa renew`: the server's next certificate, and who else's ends soon."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from hansa.address import is_host, split
from hansa.errors import UserError
from hansa.folders import made, write_folder
from hansa.identity import ends, hosts, make_server
from hansa.roster import Roster
from hansa.startup import SERVER_FILE, SOON, TLS_CERTIFICATE, TLS_KEY, ending, read
from hansa.swap import swap
from server.consortium import open_consortium
from server.enrolment import CERTIFICATES

RENEWED = "server-renewed"
MEND = "hansa renew FOLDER where the consortium was founded"


def renew(folder: Path, names: Sequence[str], now: datetime) -> list[str]:
    """Makes the server's next certificate, for a new key.

    Args:
        folder: that `hansa provision` made.
        names: DNS names and IP addresses of the server; none: those of the certificate that is there.
        now: with its zone.

    Returns:
        What is to be done with it: a line each.

    Raises:
        UserError: a name is wrong, or the folder is not in order.
    """
    own, server = open_consortium(folder, now), folder / "server"
    if wrong := [name for name in names if not is_host(name)]:
        raise UserError(*(f"--host {name}: must be a DNS name or an IP address, without a port" for name in wrong))
    here = (server / SERVER_FILE).is_file()
    if not names:
        names = hosts(read(server, TLS_CERTIFICATE)) if here else [split(own.table.server)[0], "localhost", "127.0.0.1"]
    tls = make_server(own.authority, list(dict.fromkeys(names)), now)
    files = {TLS_CERTIFICATE: tls.certificate, TLS_KEY: tls.key}
    if here:
        swap(server, files)
    elif (folder / RENEWED).exists():
        raise UserError(f"{folder / RENEWED}: is there; take it to the server and remove it here, then try again")
    else:
        with made(folder / RENEWED) as new:
            write_folder(new, files)
    at = server if here else folder / RENEWED
    return [
        f"{at / TLS_CERTIFICATE}: for {', '.join(names)}, good until {ends(tls.certificate):%Y-%m-%d}",
        f"lay it and {TLS_KEY} into the folder on the server's machine, over a way that nobody else reads, if that is "
        "elsewhere; gate and runs take them up at once, Flower when hansa server up is started the next time",
    ]


def endings(folder: Path, roster: Roster, now: datetime) -> Iterator[str]:
    """A line for each certificate that ends soon: the server's, and those that sites have collected there.

    Args:
        folder: the server's.
        roster: its own.
        now: with its zone.
    """
    if line := ending(folder, read(folder, TLS_CERTIFICATE), now, MEND):
        yield line
    for site in roster.sites:
        path = folder / CERTIFICATES / f"{site.name}.crt"
        if path.is_file() and (until := ends(path.read_bytes())) - now <= SOON:
            yield f"warning: the certificate of {site.name} ends on {until:%Y-%m-%d}; there: hansa site renew"
