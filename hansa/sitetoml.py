"""The file that a site gets with its folder, for its people to read and edit."""

import json

SESSION = """\
# Where the sessions go; left out, the server says so in its invitation.
#session = "fl.example.org:9093"
"""
EXAMPLE = '#proxy = "http://user:password@proxy:3128"'

SITE_TOML = """\
# What %(name)s allows, where its rows are, what it computes on. A "#" without a space before a key: it is not in force.

[site]
name = "%(name)s"
server = "%(server)s"
%(session)s
[network]
gate = %(gate)s             # true: server is the server's public port, by which everything goes
%(proxy)s    # on the way to it; or by the variable HANSA_PROXY

# An app is code, and it reads the rows: read it, then allow it by the line that `hansa digest APP` prints.
[apps]
allowed = []

# How far the numbers of an app's federation.toml may go: its digest leaves that file out. Quote the keys.
[bounds]
#"training.epochs" = { max = 10 }
#"training.steps" = { max = 1000 }
#"training.batch_size" = { min = 8 }
#"training.lr" = { max = 0.5 }
#"rounds.rounds" = { max = 500 }

# Where this site's rows are, with the keys of federation.toml's [data]: that one does not count here. Without it the
# site takes part only where the app's own code knows where its rows are. Paths are relative to this file.
#[data]
#csv = "patients.csv"
#target = "disease"

# Where this site keeps the weights that adapters stand on: safetensors files, held to the sha256 in an app's [base].
#[base]
#folder = "base"

[training]
device = "auto"          # "cpu", "cuda", "cuda:1", "mps"
#threads = 4             # of torch
#num_workers = 2         # processes that load rows

[policy]
# Without secure aggregation the server sees this site's own update, and may learn something of its rows from it.
# true: this site agrees to such runs.
allow_unprotected = false
# What secure aggregation must be like here; no server can ask for less.
#min_sites = 3           # sites of a sum
#allow_two_sites = false # true: if there are two sites only, the other one may learn this site's update by subtraction
#max_clip = 1.0          # the most that [privacy] clip may be
#min_ring_bits = 32      # the least that [privacy] ring_bits may be
#trust_server_noise = true # false: no part in runs where only the server adds the noise of differential privacy

# What may be learnt of this site's rows by all runs together, as differential privacy counts it. With this table
# nothing leaves that was not trained under it; "hansa budget show" says what is spent.
#[budget]
#unit = "record"         # who is protected: "record" (a row), "group" (whose they are: [data] split.by), "site" (all)
#epsilon = 10.0
#delta = 1e-5
#dataset = "main"        # these rows' name: give another when they are others, not before
#allow_repeats = false   # true: each row is taken for a person of its own although [data] split.by says otherwise

[flower]
telemetry = false        # true: Flower reports its use to its makers
"""


def site_toml(name: str, server: str, gate: bool = False, proxy: str | None = None) -> bytes:
    """A new site.toml.

    Args:
        name: the site's.
        server: host:port.
        gate: whether that is the server's public port.
        proxy: the URL of one on the way; None: there is none.
    """
    # A TOML text in double quotes escapes as JSON does.
    line = EXAMPLE if proxy is None else f"proxy = {json.dumps(proxy)}"
    said = {
        "name": name,
        "server": server,
        "session": "" if gate else SESSION,
        "gate": str(gate).lower(),
        "proxy": line,
    }
    return (SITE_TOML % said).encode()
