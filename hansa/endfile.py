"""What the files of the two ends, site.toml and server.toml, have in common."""

from hansa.tables import Table


class FlowerTable(Table):
    """[flower]: the processes that Flower runs at this end."""

    telemetry: bool = False  # let Flower report its use to its makers
