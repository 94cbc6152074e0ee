"""The server's commands."""

from pathlib import Path
from typing import Annotated

import typer


def provision(
    folder: Annotated[Path, typer.Argument(help="The consortium's folder: a new one, or one made before.")],
    site: Annotated[list[str] | None, typer.Option(help="A site to add; repeatable.")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or IP address of the server; repeatable, sites dial the first. [default: 127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Where Flower listens at the server; sessions have the next. [default: 9092]")
    ] = None,
    consortium: Annotated[str | None, typer.Option(help="Its name. [default: the folder's]")] = None,
) -> None:
    """Make the certificates, keys and folders of a consortium, or add sites to it."""
    from datetime import UTC, datetime

    from server.provision import Founding, provision

    for line in provision(folder, site or [], Founding(consortium, tuple(host or ()), port), datetime.now(UTC)):
        typer.echo(line)
