"""site.toml: what is right is read as it stands, what is not said is not allowed, each mistake gets its line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clients.datatable import DataTable
from clients.sitefile import TABLES, AppsTable, PolicyTable, SiteTable, SiteTrainingTable, load_site_file
from hansa.endfile import FlowerTable
from hansa.errors import UserError

BASE = '[site]\nname = "boston"\nserver = "fl.example.org:9092"\n'
NAME = "up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
DIGEST = "the digest of an app, as `hansa digest APP` prints it"
DEVICE = '"auto", "cpu", "cuda", "cuda:1" and the like, "mps"'
PROXY = "http://proxy:3128 or http://user:password@proxy:3128; %40 stands for @ in a password"
ADDRESS = "host:port, e.g. fl.example.org:9092"
NUMBERS = "(numbers: epochs, steps, batch_size, lr, lr_decay, momentum, weight_decay, clip_norm)"
GOOD = f"sha256:{'a' * 64}"

# What stands below BASE, and the lines that it gets, each after "site.toml ".
MISTAKES: list[tuple[str, list[str]]] = [
    # [site]; BASE ends within it
    ("session = 'h'", [f'[site] session: must be {ADDRESS}; got "h"']),
    ("session = 9093", ["[site] session: must be text in quotes; got 9093"]),
    (
        "session = '0.0.0.0:1'",
        ["[site] session: 0.0.0.0 cannot be dialled; give the name or IP address of the other end"],
    ),
    ("nam = 'x'", ["[site] nam: no such key; did you mean name? (keys: name, server, session)"]),
    # [network]
    ("[network]\ngate = 1", ["[network] gate: must be true or false; got 1"]),
    ("[network]\ngate = true\nproxy = 3128", [f"[network] proxy: must be {PROXY}"]),
    (
        "[network]\nproxy = 'http://proxy:3128'",
        ["[network]: a proxy leads to the server's public port only; set gate = true, or leave proxy out"],
    ),
    # [apps]
    ("[apps]\nallowed = 'all'", ['[apps] allowed: must be a list; got "all"']),
    ("[apps]\nallowed = ['*']", [f'[apps] allowed, item 1: must be {DIGEST}; got "*"']),
    (
        f"[apps]\nallowed = ['{GOOD}', '{GOOD[7:]}']",
        [f'[apps] allowed, item 2: must be {DIGEST}; got "{"a" * 56}...'],
    ),
    (f"[apps]\nallowed = ['{GOOD.upper()}']", [f'[apps] allowed, item 1: must be {DIGEST}; got "SHA256:{"A" * 49}...']),
    ("[apps]\nallow = []", ["[apps] allow: no such key; did you mean allowed? (keys: allowed)"]),
    # [bounds]: a key that bounds nothing would be a hole that nobody sees
    (
        "[bounds]\ntraining.lr = {max = 1}",
        ['[bounds.training]: write "table.key" of federation.toml in quotes, e.g. "training.lr" = { max = 0.5 }'],
    ),
    (
        "[bounds]\n'training.lrr' = {max = 1}",
        [f"[bounds.training.lrr]: no such number of [training]; did you mean lr? {NUMBERS}"],
    ),
    (
        "[bounds]\n'training.optimizer' = {max = 1}",
        [f"[bounds.training.optimizer]: no such number of [training] {NUMBERS}"],
    ),
    (
        "[bounds]\n'training.num_workers' = {max = 1}",
        [f"[bounds.training.num_workers]: no such number of [training] {NUMBERS}"],
    ),
    (
        "[bounds]\n'round.rounds' = {max = 1}",
        [
            "[bounds.round.rounds]: a site reads no such table; did you mean [rounds]? "
            "(tables: base, dp, federation, privacy, rounds, strategy, training)"
        ],
    ),
    (
        "[bounds]\n'data.target' = {max = 1}",
        [
            "[bounds.data.target]: a site reads no such table "
            "(tables: base, dp, federation, privacy, rounds, strategy, training)"
        ],
    ),
    (
        "[bounds]\n'training.epochs' = {max = 1}",
        ['[bounds.training.epochs]: a run may count its work in steps instead; bound "training.steps" as well'],
    ),
    ("[bounds]\n'training.lr' = {}", ["[bounds.training.lr]: no bound; set min, max or both"]),
    ("[bounds]\n'training.lr' = {min = 2, max = 1}", ["[bounds.training.lr]: min = 2 is above max = 1"]),
    ("[bounds]\n'training.lr' = {max = '1'}", ['[bounds.training.lr] max: must be a number; got "1"']),
    ("[bounds]\n'training.lr' = {max = true}", ["[bounds.training.lr] max: must be a number; got true"]),
    ("[bounds]\n'training.lr' = {max = inf}", ["[bounds.training.lr] max: must be a finite number; got Infinity"]),
    (
        "[bounds]\n'training.lr' = {mx = 1}",
        ["[bounds.training.lr] mx: no such key; did you mean max? (keys: min, max)"],
    ),
    ("[bounds]\n'training.lr' = 1", ["[bounds] training.lr: must be a table; got 1"]),
    # [data] is the table of federation.toml
    ("[data]\ncsv = 'a.csv'", ["[data]: no target; name the column that is to be predicted"]),
    ("[data]\ncsv = '{sit}'\ntarget = 'y'", ["[data] csv: {sit} is unknown; only {site} is filled in"]),
    # [training]
    ("[training]\ndevice = 'gpu'", [f'[training] device: must be {DEVICE}; got "gpu"']),
    ("[training]\nthreads = 0", ["[training] threads: must be at least 1; got 0"]),
    ("[training]\nnum_workers = -1", ["[training] num_workers: must be at least 0; got -1"]),
    ("[training]\nprocs = 0", ["[training] procs: must be at least 1; got 0"]),
    (
        "[training]\nprocs = 2\ndevices = ['cuda:0']",
        ["[training]: devices names 1, and a machine has 2 ranks; name one for each"],
    ),
    (
        "[training]\ndevice = 'cpu'\ndevices = ['cuda:0']",
        ["[training]: device and devices; remove one of them"],
    ),
    (
        "[training]\nprocs = 2\ndevice = 'cuda:1'",
        ['[training]: device = "cuda:1" for 2 processes; name one for each in devices'],
    ),
    ("[training]\nbackend = 'mpi'", ['[training] backend: must be "auto", "gloo" or "nccl"; got "mpi"']),
    ("[training]\nheartbeat = 0.5", ["[training] heartbeat: must be at least 1; got 0.5"]),
    (
        "[training]\nlr = 1",
        [
            "[training] lr: no such key (keys: parallel, activation_checkpointing, compile, precision, accumulation, "
            "device, threads, num_workers, procs, devices, mode, nodes, listen, node_wait, backend, heartbeat, "
            "start_timeout, collective_timeout, max_restarts, checkpoint_interval)"
        ],
    ),
    (
        "[training]\nnodes = 2\nprocs = 2",
        ['[training]: nodes and listen are for mode = "agents" or "slurm"; set it, or remove them'],
    ),
    (
        "[training]\nmode = 'agents'\nprocs = 2",
        ['[training]: mode = "agents" without listen; give host:port of this machine, e.g. "10.0.0.5:7443"'],
    ),
    (
        "[training]\nmode = 'agents'\nlisten = '10.0.0.5:7443'\nnodes = 2\nprocs = 3",
        ["[training]: procs = 3 over nodes = 2; make it a multiple: each has as many"],
    ),
    # [policy]
    ("[policy]\nallow_unprotected = 1", ["[policy] allow_unprotected: must be true or false; got 1"]),
    ("[policy]\nallow_unprotected = 'true'", ['[policy] allow_unprotected: must be true or false; got "true"']),
    (
        "[policy]\nallow_unprotcted = true",
        [
            "[policy] allow_unprotcted: no such key; did you mean allow_unprotected? "
            "(keys: allow_unprotected, min_sites, allow_two_sites, max_clip, min_ring_bits, "
            "trust_server_noise)"
        ],
    ),
    # [flower]
    ("[flower]\ntelemetry = 'no'", ['[flower] telemetry: must be true or false; got "no"']),
    # tables
    (
        "[polcy]",
        [f"[polcy]: unknown table; did you mean [policy]? (tables: {', '.join(TABLES)})"],
    ),
    ("[simulation]", [f"[simulation]: unknown table (tables: {', '.join(TABLES)})"]),
]

# Whole files.
WRONG_FILES: list[tuple[str, list[str]]] = [
    (
        "",
        [
            f"[site] name: is missing; give {NAME}",
            "[site] server: is missing; give host:port of the server's Flower end, e.g. fl.example.org:9092",
        ],
    ),
    (
        "[policy]\nallow_unprotected = 2\n[site]\nserver = 'h:0'\nname = '../x'",
        [
            "[policy] allow_unprotected: must be true or false; got 2",
            '[site] server: port 0 cannot be dialled; give the port of the other end; got "h:0"',
            f'[site] name: must be {NAME}; got "../x"',
        ],
    ),
    ("allowed = []\n" + BASE, ["allowed: stands outside all tables; move it below [apps]"]),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(UserError) as raised:
        load_site_file(path)
    return [re.sub("^site.toml ", "", line) for line in raised.value.problems]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_each_mistake_gets_its_line(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(write(tmp_path, BASE + text)) == expected


@pytest.mark.parametrize(("text", "expected"), WRONG_FILES, ids=[text for text, _ in WRONG_FILES])
def test_each_wrong_file_gets_its_lines(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(write(tmp_path, text)) == expected


def test_what_is_not_said_is_not_allowed(tmp_path: Path) -> None:
    file = load_site_file(write(tmp_path, BASE))
    assert file.apps == AppsTable(allowed=())
    assert file.policy == PolicyTable(allow_unprotected=False)
    assert file.flower == FlowerTable(telemetry=False)
    assert file.data is None
    assert file.training.num_workers == 0
    assert file.folder == tmp_path


def test_every_key_is_read(tmp_path: Path) -> None:
    text = f"""{BASE}session = "[2001:db8::7]:9093"
    [apps]
    allowed = ["{GOOD}"]
    [bounds]
    "training.lr" = {{ min = 0.001, max = 1 }}
    [data]
    csv = "patients.csv"
    target = "disease"
    [training]
    device = "cuda:1"
    threads = 4
    num_workers = 2
    [policy]
    allow_unprotected = true
    [flower]
    telemetry = true
    """
    file = load_site_file(write(tmp_path, text))
    assert file.site == SiteTable(name="boston", server="fl.example.org:9092", session="[2001:db8::7]:9093")
    assert file.apps.allowed == (GOOD,)
    assert file.bounds.broken_by({"training": {"lr": 2}}) == "training.lr"
    assert file.bounds.broken_by({"training": {"lr": 0.5}}) is None
    assert file.data == DataTable(csv="patients.csv", target="disease")
    assert file.training == SiteTrainingTable(device="cuda:1", threads=4, num_workers=2)
    assert file.policy.allow_unprotected
    assert file.flower.telemetry


@pytest.mark.parametrize(
    "url", ["me:hunter2@proxy:3128", "https://me:hunter2@proxy:3128", "http://me:hunter2@proxy", "http://hunter2@p:1"]
)
def test_a_proxy_s_password_is_shown_neither_by_a_mistake_nor_by_the_table(tmp_path: Path, url: str) -> None:
    network = f"{BASE}[network]\ngate = true\n"
    assert problems(write(tmp_path, f"{network}proxy = '{url}'")) == [f"[network] proxy: must be {PROXY}"]
    right = load_site_file(write(tmp_path, f"{network}proxy = 'http://me:hunter2@proxy:3128'"))
    assert right.network.proxy is not None
    for text in (repr(right), str(right), str(right.network.proxy)):
        assert "hunter2" not in text
        assert str(right.network.proxy.authorization) not in text


def test_a_password_in_the_data_s_url_is_not_shown(tmp_path: Path) -> None:
    text = f"{BASE}[data]\nsql = 'postgresql://me:hunter2@h/db'\nquery = 'select * from a order by id'\ntarget = 'y'"
    assert "hunter2" not in repr(load_site_file(write(tmp_path, text)))


def test_the_site_s_light_process_stays_light() -> None:
    """A site's session outlives crashes in training, because nothing of training is in its process."""
    start = "import sys, clients.sitefolder, clients.policy, clients.audit; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True)
    assert {"clients.sitefile", "pydantic"} <= set(done.stdout.split())
    assert {"torch", "numpy", "pandas", "flwr", "grpc"}.isdisjoint(done.stdout.split())
