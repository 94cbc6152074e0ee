"""federation.toml: what is right is read as it stands, and each mistake gets the one line that mends it."""

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from torch.optim import SGD

import simulations.datasets
import strategies
from clients.config import TrainingTable
from clients.datatable import DataTable
from hansa.choose import registered
from hansa.config import load
from hansa.errors import UserError
from hansa.tables import FederationTable
from server.config import RoundsTable
from simulations.config import SimulationTable
from simulations.datasets.base import FederatedDataset
from simulations.datasets.synthetic import Synthetic
from simulations.partition import Dirichlet
from simulations.stragglers import Stragglers
from strategies.base import Strategy
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx

EXAMPLE = Path(__file__).parents[2] / "examples" / "federation.toml"
BASE = '[federation]\nname = "heart"\ntask = "task.py:Heart"\n'

TRAINING = (
    "epochs, steps, batch_size, drop_last, num_workers, optimizer, lr, lr_decay, momentum, weight_decay, clip_norm, "
    "precision"
)
NAME = "up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
TASK = "file.py:Class, the path relative to federation.toml, e.g. task.py:Heart"
SITES = 'a number of sites, at least 1, or a list of names such as ["boston", "lyon"]'
SHARE = "a number of sites (1, 2, ...) or a share of them (above 0.0, up to 1.0)"
DEVICE = '"auto", "cpu", "cuda", "cuda:1" and the like, "mps"'
TABLES = "(tables: base, data, dp, federation, privacy, rounds, simulation, strategy, training)"

# What stands below BASE, and the lines that it gets, each after "federation.toml ".
MISTAKES: list[tuple[str, list[str]]] = [
    # keys
    ("[training]\nlrr = 1", [f"[training] lrr: no such key; did you mean lr? (keys: {TRAINING})"]),
    ("[training]\nzzz = 1", [f"[training] zzz: no such key (keys: {TRAINING})"]),
    (
        "[strategy]\nname = 'fedprox'\nmuu = 1",
        ["[strategy] muu: FedProx has no such key; did you mean mu? (keys: local, mu)"],
    ),
    ("[strategy]\nmu = 1", ["[strategy] mu: FedAvg has no such key (keys: local)"]),
    (
        "[simulation.dataset]\nname = 'digits'\nseed = 1",
        ["[simulation.dataset] seed: Digits has no such key (keys: none)"],
    ),
    (
        "[simulation.dataset]\nname = 'synthetic'\nnumber = 1",
        ["[simulation.dataset] number: Synthetic has no such key (keys: normalize, alpha, beta, iid, sites, seed)"],
    ),
    (
        "[simulation]\nstragglers = {fraction = 1, keeep = true}",
        ["[simulation.stragglers] keeep: no such key; did you mean keep? (keys: fraction, keep)"],
    ),
    # tables
    ("[trainng]\nlr = 1", [f"[trainng]: unknown table; did you mean [training]? {TABLES}"]),
    ("[zzz]", [f"[zzz]: unknown table {TABLES}"]),
    ("[[training]]\nlr = 1", ["training: must be a table; write [training] once, in single brackets, its keys below"]),
    ("[simulation]\nstragglers = 0.9", ["[simulation] stragglers: must be a table; got 0.9"]),
    ("[simulation]\npartition = 'iid'", ['[simulation] partition: must be a table; got "iid"']),
    ("[simulation]\ndataset = 'digits'", ['[simulation] dataset: must be a table; got "digits"']),
    # names that choose a class
    (
        "[strategy]\nname = 'fedprix'",
        ['[strategy] name: no strategy "fedprix"; did you mean "fedprox"? (there are: *)'],
    ),
    ("[strategy]\nname = 'base'", ['[strategy] name: no strategy "base" (there are: *)']),
    ("[strategy]\nname = 3", ["[strategy] name: must be text in quotes"]),
    (
        "[simulation]\ndataset = {name = 'digit'}",
        ['[simulation.dataset] name: no data set "digit"; did you mean "digits"? (there are: *)'],
    ),
    ("[simulation]\ndataset = {normalize = true}", ["[simulation.dataset] name: is missing; add it"]),
    (
        "[simulation]\npartition = {name = 'dirichlett'}",
        [
            '[simulation.partition] name: must be "iid", "dirichlet", "quantity", "labels" or "natural"; got '
            '"dirichlett"; did you mean "dirichlet"?'
        ],
    ),
    ("[simulation]\npartition = {sites = 3}", ["[simulation.partition] name: is missing; give the name of one"]),
    # types: nothing is converted in silence
    ("[training]\nlr = '0.1'", ['[training] lr: must be a number; got "0.1"']),
    ("[training]\nlr = true", ["[training] lr: must be a number; got true"]),
    ("[training]\nepochs = '3'", ['[training] epochs: must be a whole number; got "3"']),
    ("[training]\nepochs = 1.5", ["[training] epochs: must be a whole number; got 1.5"]),
    ("[training]\nepochs = true", ["[training] epochs: must be a whole number; got true"]),
    ("[training]\ndrop_last = 1", ["[training] drop_last: must be true or false; got 1"]),
    ("[training]\ndrop_last = 'no'", ['[training] drop_last: must be true or false; got "no"']),
    ("[training]\noptimizer = 1", ["[training] optimizer: must be text in quotes; got 1"]),
    ("[training]\nlr = {a = 1}", ["[training.lr]: must be a number; got a table"]),
    ("[training]\nlr = 2024-01-01", ["[training] lr: must be a number; got 2024-01-01"]),
    ("[strategy]\nlocal = 'head.*'", ['[strategy] local: must be a list; got "head.*"']),
    ("[strategy]\nlocal = ['head.*', 3]", ["[strategy] local, item 2: must be text in quotes; got 3"]),
    # [training]
    ("[training]\nlr = 0", ["[training] lr: must be greater than 0; got 0"]),
    ("[training]\nlr = nan", ["[training] lr: must be a finite number; got NaN"]),
    ("[training]\nlr = inf", ["[training] lr: must be a finite number; got Infinity"]),
    ("[training]\nlr_decay = 1.5", ["[training] lr_decay: must be at most 1; got 1.5"]),
    ("[training]\nlr_decay = 0", ["[training] lr_decay: must be greater than 0; got 0"]),
    ("[training]\nepochs = 0", ["[training] epochs: must be at least 1; got 0"]),
    ("[training]\nsteps = 0", ["[training] steps: must be at least 1; got 0"]),
    ("[training]\nepochs = 1\nsteps = 1", ["[training]: epochs and steps are both set; keep one of them"]),
    ("[training]\nbatch_size = 0", ["[training] batch_size: must be at least 1; got 0"]),
    ("[training]\nnum_workers = -1", ["[training] num_workers: must be at least 0; got -1"]),
    ("[training]\nmomentum = 1", ["[training] momentum: must be less than 1; got 1"]),
    ("[training]\nmomentum = -0.1", ["[training] momentum: must be at least 0; got -0.1"]),
    (
        "[training]\nmomentum = 0.9\noptimizer = 'adam'",
        ['[training]: momentum has no effect with optimizer = "adam"; remove it or use "sgd"'],
    ),
    ("[training]\nweight_decay = -1", ["[training] weight_decay: must be at least 0; got -1"]),
    ("[training]\nclip_norm = 0", ["[training] clip_norm: must be greater than 0; got 0"]),
    (
        "[training]\nprecision = 'float8'",
        ['[training] precision: must be "float32", "bfloat16" or "float16"; got "float8"; did you mean "float32"?'],
    ),
    # [rounds]
    ("[rounds]\nrounds = 0", ["[rounds] rounds: must be at least 1; got 0"]),
    ("[rounds]\nsites_per_round = 0", [f"[rounds] sites_per_round: must be {SHARE}; got 0"]),
    ("[rounds]\nsites_per_round = 1.5", [f"[rounds] sites_per_round: must be {SHARE}; got 1.5"]),
    ("[rounds]\nquorum = 'all'", [f'[rounds] quorum: must be {SHARE}; got "all"']),
    (
        "[rounds]\nquorum = 3\nsites_per_round = 2",
        ["[rounds]: quorum = 3 cannot be reached with sites_per_round = 2"],
    ),
    ("[rounds]\nmax_void = -1", ["[rounds] max_void: must be at least 0; got -1"]),
    ("[rounds]\nkeep = 'bst'", ['[rounds] keep: must be "last" or "best"; got "bst"; did you mean "best"?']),
    ("[rounds]\npatience = 0", ["[rounds] patience: must be at least 1; got 0"]),
    # [strategy]
    ("[strategy]\nname = 'fedprox'\nmu = -1", ["[strategy] mu: must be at least 0; got -1"]),
    ("[strategy]\nname = 'ditto'\nlam = -1", ["[strategy] lam: must be at least 0; got -1"]),
    ("[strategy]\nname = 'scaffold'\nserver_lr = 0", ["[strategy] server_lr: must be greater than 0; got 0"]),
    (
        "[strategy]\nname = 'scaffold'\nweight = 'example'",
        ['[strategy] weight: must be "uniform" or "examples"; got "example"; did you mean "examples"?'],
    ),
    (
        "[training]\noptimizer = 'adam'\n[strategy]\nname = 'scaffold'",
        ["[strategy] Scaffold: not valid with Adam; it needs SGD; change [training] optimizer"],
    ),
    # [simulation]
    ("[simulation]\nengine = 'lop'", ['[simulation] engine: no engine "lop"; did you mean "loop"? (there are: *)']),
    ("[simulation]\nsites = 0", [f"[simulation] sites: must be {SITES}; got 0"]),
    ("[simulation]\nsites = 'boston'", [f'[simulation] sites: must be {SITES}; got "boston"']),
    ("[simulation]\nsites = []", [f"[simulation] sites: must be {SITES}; got []"]),
    (
        "[simulation]\nsites = ['boston', '../lyon']",
        [f'[simulation] sites, item 2: must be {NAME}; got "../lyon"'],
    ),
    ("[simulation]\nsites = ['boston', 'lyon', 'boston']", ['[simulation] sites: "boston" stands twice; remove one']),
    (
        "[simulation]\nsites = 4\npartition = {name = 'iid', sites = 4}",
        ["[simulation] sites: the partition makes the sites; remove it here"],
    ),
    (
        "[simulation]\nsites = 4\ndataset = {name = 'heart_disease'}",
        ["[simulation] sites: the dataset has sites of its own; remove it, or write a partition"],
    ),
    ("[simulation]\npartition = {name = 'iid'}", ["[simulation.partition] sites: is missing; add it"]),
    (
        "[simulation]\npartition = {name = 'dirichlet', sites = 0, alpha = 0, floor = -1}",
        [
            "[simulation.partition] sites: must be at least 1; got 0",
            "[simulation.partition] alpha: must be at least 1e-06; got 0",
            "[simulation.partition] floor: must be at least 0; got -1",
        ],
    ),
    (
        "[simulation]\npartition = {name = 'labels', sites = 2, per_site = 0}",
        ["[simulation.partition] per_site: must be at least 1; got 0"],
    ),
    ("[simulation]\npartition = {name = 'natural'}", ["[simulation.partition] column: is missing; add it"]),
    (
        "[simulation]\ndataset = {name = 'synthetic', alpha = -1, sites = 0}",
        [
            "[simulation.dataset] alpha: must be at least 0; got -1",
            "[simulation.dataset] sites: must be at least 1; got 0",
        ],
    ),
    (
        "[simulation]\ndataset = {name = 'synthetic', iid = true, beta = 1}",
        ["[simulation.dataset]: alpha and beta have no effect with iid = true; remove them"],
    ),
    ("[simulation]\nstragglers = {keep = true}", ["[simulation.stragglers] fraction: is missing; add it"]),
    (
        "[simulation]\nstragglers = {fraction = 1.1}",
        ["[simulation.stragglers] fraction: must be at most 1; got 1.1"],
    ),
    (
        "[simulation]\nstragglers = {fraction = 0.5, keep = true}",
        [
            "[simulation] stragglers: keep has no effect with one epoch or step a round; set [training] epochs to 2 or "
            "more"
        ],
    ),
    ("[simulation]\ndevice = 'gpu'", [f'[simulation] device: must be {DEVICE}; got "gpu"']),
    ("[simulation]\nthreads = 0", ["[simulation] threads: must be at least 1; got 0"]),
    ("[simulation]\nruns = ''", ['[simulation] runs: must be the path of a folder; got ""']),
    # [data], alone and beside [simulation]
    ("[data]\ntarget = 'y'", ["[data]: no source; set one of csv, parquet, sql, images"]),
    ("[data]\ncsv = 'a.csv'\nparquet = 'b'\ntarget = 'y'", ["[data]: csv and parquet are both set; keep one of them"]),
    (
        "[data]\ncsv = 'a.csv'\ntarget = 'y'\ntypes = {age = 'flot'}",
        ['[data.types] age: must be "float", "int" or "category"; got "flot"; did you mean "float"?'],
    ),
    ("[data]\ncsv = 'a.csv'\ntarget = 'y'\nsplit = {test = 1}", ["[data.split] test: must be less than 1; got 1"]),
    (
        "[data]\ncsv = 'a.csv'\ntarget = 'y'\nsplit = {after = 'May'}",
        ['[data.split] after: must be a date such as 2024-01-01; got "May"'],
    ),
    (
        "[data]\ncsv = 'a.csv'\ntarget = 'y'\nseparator = '||'",
        ['[data] separator: must be at most 1 characters long; got "||"'],
    ),
    ("[data]\nimages = 'a'\nsize = [28]", ["[data] size, item 2: is missing; add it"]),
    ("[data]\ncsv = '{sit}.csv'\ntarget = 'y'", ["[data] csv: {sit} is unknown; only {site} is filled in"]),
    (
        "[data]\ncsv = 'a.csv'\ntarget = 'y'\n[simulation]\ndataset = {name = 'digits'}",
        ["[simulation] dataset: [data] says where the rows are as well; keep one of them"],
    ),
    (
        "[data]\ncsv = 'a.csv'\ntarget = 'y'\n[simulation]\nsites = ['a', 'b']",
        ["[simulation] sites: all would have the same rows; write {site} in the path of [data], or a partition"],
    ),
    (
        "[data]\ncsv = '{site}.csv'\ntarget = 'y'\n[simulation]\npartition = {name = 'iid', sites = 4}",
        ["[simulation] partition: it deals rows of one source, but [data] has one for each {site}; keep one of them"],
    ),
]

# Whole files.
WRONG_FILES: list[tuple[str, list[str]]] = [
    ("", [f"[federation] name: is missing; give {NAME}", f"[federation] task: is missing; give {TASK}"]),
    (
        "[federation]\nname = 'a b'\ntask = 'task.py'\nseed = -1",
        [
            f'[federation] name: must be {NAME}; got "a b"',
            f'[federation] task: must be {TASK}; got "task.py"',
            "[federation] seed: must be at least 0; got -1",
        ],
    ),
    ("lr = 1\n" + BASE, ["lr: stands outside all tables; move it below [training]"]),
    ("zzz = 1\n" + BASE, ["zzz: stands outside all tables; move it below its table"]),
    ("rounds = 3\n" + BASE, ["rounds: must be a table; write [rounds] once, in single brackets, its keys below"]),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "federation.toml"
    path.write_text(text)
    return path


def problems(path: Path, *overrides: str) -> list[str]:
    """The lines of the error, the lists of what there is left out: others add to them."""
    with pytest.raises(UserError) as raised:
        load(path, overrides)
    assert str(raised.value) == "\n".join(raised.value.problems)
    return [re.sub(r"\(there are: [^)]*\)", "(there are: *)", line) for line in raised.value.problems]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_each_mistake_gets_its_line(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(write(tmp_path, BASE + text)) == [f"federation.toml {line}" for line in expected]


@pytest.mark.parametrize(("text", "expected"), WRONG_FILES, ids=[text for text, _ in WRONG_FILES])
def test_each_wrong_file_gets_its_lines(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(write(tmp_path, text)) == [f"federation.toml {line}" for line in expected]


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[simulation]\nthreads = 0\npartition = {alpha = 0, name = 'dirichlet', sites = 2}\ndevice = 'gpu'\n"
        "[trainng]\n[training]\nlr = -1\nlrr = 1\nbatch_size = 0\n[federation]\ntask = 'x'",
    )
    where = [line.removeprefix("federation.toml ").partition(":")[0] for line in problems(path)]
    assert where == [
        "[simulation] threads",
        "[simulation.partition] alpha",
        "[simulation] device",
        "[trainng]",
        "[training] lr",
        "[training] lrr",
        "[training] batch_size",
        "[federation] task",
        "[federation] name",
    ]


@pytest.mark.parametrize("key", ["sql", "query", "csv"])
def test_a_value_that_may_hold_a_password_is_not_repeated(tmp_path: Path, key: str) -> None:
    (line,) = problems(write(tmp_path, f"{BASE}[data]\n{key} = ['postgresql://me:hunter2@host/db']"))
    assert line == f"federation.toml [data] {key}: must be text in quotes"


def test_a_password_is_not_repeated_by_an_override(tmp_path: Path) -> None:
    path = write(tmp_path, BASE)
    lines = problems(path, "data.sql='postgresql://me:hunter2@host/db")
    lines += problems(path, "data.sql=postgresql://me:hunter2@host/db", "data.query=select 1")
    assert "hunter2" not in "".join(lines)


@pytest.mark.parametrize("url", ["postgresql://ann:{}@db/x", "mssql://db/x?PWD={}&driver=x", "db://ann:{}@h?token={}"])
def test_a_password_does_not_stand_in_the_text_that_is_kept(tmp_path: Path, url: str) -> None:
    data = f'[data]\nsql = "{url}"\nquery = "SELECT * FROM t ORDER BY id"\ntarget = "y"\n'
    path = write(tmp_path, BASE + data.replace("{}", "S3CRET"))
    assert load(path).text == BASE + data.replace("{}", "***")
    assert "S3CRET" not in load(path, [f"data.sql={url.format('S3CRET', 'S3CRET')}"]).text


def test_bad_toml_is_one_line_with_line_and_column(tmp_path: Path) -> None:
    (line,) = problems(write(tmp_path, "[training]\nlr = = 1\n"))
    assert line == "federation.toml: not TOML: invalid value (at line 2, column 6)"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    assert problems(path) == [f"{path}: no such file or directory; give the path of a TOML file"]


def test_a_file_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_bytes(b"# caf\xe9")
    assert problems(tmp_path / "federation.toml") == ["federation.toml: not UTF-8 text (byte 5); save it as UTF-8"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load(tmp_path / "federation.toml").table("federation", FederationTable).name == "heart"


def test_tables_are_their_owners_objects(tmp_path: Path) -> None:
    text = "[training]\nlr = 1\n[strategy]\nname = 'fedprox'\nmu = 0.5\nlocal = ['head.*']\n[simulation]\n"
    text += "partition = {name = 'dirichlet', sites = 3, alpha = 0.5}\ndataset = {name = 'synthetic', sites = 3}\n"
    path = write(tmp_path, BASE + text + "stragglers = {fraction = 0.9}")
    config = load(path)
    assert config.folder == tmp_path
    assert config.table("training", TrainingTable) == TrainingTable(lr=1)
    assert config.table("strategy", Strategy) == FedProx(mu=0.5, local=("head.*",))
    assert config.table("simulation", SimulationTable) == SimulationTable(
        partition=Dirichlet(sites=3, alpha=0.5), dataset=Synthetic(sites=3), stragglers=Stragglers(fraction=0.9)
    )


def test_a_table_that_is_left_out_stands_at_its_defaults_or_is_absent(tmp_path: Path) -> None:
    config = load(write(tmp_path, BASE))
    assert config.table("rounds", RoundsTable) == RoundsTable()
    assert type(config["strategy"]) is FedAvg
    assert "data" not in config
    with pytest.raises(UserError, match=r"federation.toml: no \[data\] table; write one"):
        config.table("data", DataTable)


def test_a_strategy_of_the_user_s_own_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from strategies.base import Strategy\nclass Mine(Strategy):\n    nu: float\n")
    path = write(tmp_path, f"{BASE}[strategy]\nname = 'mine.py:Mine'\nnu = 2")
    assert load(path)["strategy"].nu == 2
    assert problems(path, "strategy.nu=x") == ['--set strategy.nu: must be a number; got "x"']
    assert problems(path, "strategy.name=mine.py:Mien") == [
        "--set strategy.name: strategy: mine.py has no class Mien; did you mean Mine?"
    ]


def test_an_optimizer_that_only_the_task_knows_is_left_to_the_sites(tmp_path: Path) -> None:
    config = load(write(tmp_path, f"{BASE}[training]\noptimizer = 'lamb'\n[strategy]\nname = 'scaffold'"))
    assert config["strategy"].optimizers == (SGD,)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.lr=0.5", "lr", 0.5),
        ("training.lr = 5e-1", "lr", 0.5),
        ("training.drop_last=true", "drop_last", True),
        ("training.optimizer=adam", "optimizer", "adam"),
        ('training.optimizer="adam"', "optimizer", "adam"),
    ],
)
def test_an_override_takes_the_place_of_the_file_s_value(tmp_path: Path, override: str, key: str, value: Any) -> None:
    config = load(write(tmp_path, f"{BASE}[training]\nlr = 0.1"), [override])
    assert getattr(config["training"], key) == value
    assert config.text == f"{BASE}[training]\nlr = 0.1\n# --set {override}\n"


def test_an_override_reaches_into_nested_tables(tmp_path: Path) -> None:
    overrides = ["simulation.partition.name=dirichlet", "simulation.partition.alpha=1", "simulation.partition.sites=2"]
    assert load(write(tmp_path, BASE), overrides)["simulation"].partition == Dirichlet(alpha=1, sites=2)


def test_the_last_override_of_a_key_counts(tmp_path: Path) -> None:
    assert load(write(tmp_path, BASE), ["training.lr=1", "training.lr=2"])["training"].lr == 2


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("training.lr=-1", "training.lr: must be greater than 0; got -1"),
        ("training.lrr=1", f"training.lrr: no such key; did you mean lr? (keys: {TRAINING})"),
        ("trainng.lr=1", f"trainng: unknown table; did you mean [training]? {TABLES}"),
        ("simulation.partition.name=natural", "simulation.partition.column: is missing; add it"),
        ("training.lr", "training.lr: write table.key=value, e.g. --set training.lr=0.1"),
        ("lr=1", "lr: write table.key=value, e.g. --set training.lr=0.1"),
        (".lr=1", ".lr: write table.key=value, e.g. --set training.lr=0.1"),
        ("training.lr=", "training.lr: the value is not TOML; write e.g. 0.1, true or [1, 2]"),
        ("simulation.sites=[1", "simulation.sites: the value is not TOML; write e.g. 0.1, true or [1, 2]"),
        ("federation.name.x=1", "federation.name.x: federation.name is not a table"),
    ],
)
def test_each_wrong_override_gets_its_line(tmp_path: Path, override: str, line: str) -> None:
    assert problems(write(tmp_path, BASE), override) == [f"--set {line}"]


def test_the_digest_sees_values_and_nothing_else(tmp_path: Path) -> None:
    first = BASE + "[training]\nlr = 0.5\nbatch_size = 8\n[strategy]\nname = 'fedavg'\n"
    second = "# the same\n[strategy]\nname = 'fedavg'\n[training]\nbatch_size = 8\nlr = 5e-1\n[rounds]\n" + BASE
    digest = load(write(tmp_path, first)).digest
    assert load(write(tmp_path, second)).digest == digest
    assert load(tmp_path / "federation.toml", ["training.lr=0.5"]).digest == digest


@pytest.mark.parametrize(
    "override",
    [
        "federation.seed=1",
        "training.lr=0.02",
        "strategy.name=fedprox",
        "strategy.local=['head.*']",
        "simulation.dataset.name=digits",
        "simulation.partition={name='iid', sites=3}",
        "simulation.stragglers.fraction=0",
    ],
)
def test_the_digest_changes_with_a_value(tmp_path: Path, override: str) -> None:
    path = write(tmp_path, f"{BASE}[strategy]\nname = 'fedavg'\n[simulation.dataset]\nname = 'heart_disease'")
    assert load(path, [override]).digest != load(path).digest


def test_the_digest_does_not_see_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load(write(tmp_path / "a", BASE)).digest == load(write(tmp_path / "b", BASE)).digest


# The example


def blocks(text: str) -> Iterator[str]:
    """The example with one block of its commented settings in force, for each block."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"#\S", line) and not re.match(r"#\S", lines[i - 1])]
    for start in starts:
        end = next(i for i in range(start, len(lines) + 1) if not re.match(r"#\S", "".join(lines[i : i + 1])))
        section = max(i for i in range(start) if lines[i].startswith("["))
        gone = re.match(r"# instead of ([^:]+):", lines[start - 1])
        names = gone[1].split(", ") if gone else []
        kept, header = [], 0
        for i, line in enumerate(lines):
            header = i if line.startswith("[") else header
            key = line.partition(" =")[0]
            if lines[header].split("#")[0].strip() in names or (header == section and key in names):
                continue
            kept.append(line[1:] if start <= i < end else line)
        yield "\n".join(kept)


def tables_in(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from tables_in(getattr(value, name))


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """A model and those of its nested tables; for a base that a name chooses from, all built-ins."""
    if kind in (Strategy, FederatedDataset):
        package: ModuleType = strategies if kind is Strategy else simulations.datasets
        for module in iter_modules(package.__path__):
            for one in vars(import_module(f"{package.__name__}.{module.name}")).values():
                if isinstance(one, type) and issubclass(one, kind) and one.__module__.endswith(f".{module.name}"):
                    yield from models_in(one) if module.name != "base" else ()
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from models_in(field.annotation)
    else:
        for part in get_args(kind):
            yield from models_in(part)


def test_every_block_of_the_example_can_be_put_in_force(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    variants = [text, *blocks(text)]
    assert len(variants) > 20
    for variant in variants:
        load(write(tmp_path, variant))


def test_the_example_shows_every_key_of_every_table(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    shown = set()
    for variant in [text, *blocks(text)]:
        config = load(write(tmp_path, variant))
        given = tomllib.loads(variant)
        assert given.keys() <= config.keys()
        shown |= {(type(t), key) for table in config.values() for t in tables_in(table) for key in t.model_fields_set}
    owners = [point.load() for point in registered("hansa.tables").values()]
    expected = {(model, key) for owner in owners for model in models_in(owner) for key in model.model_fields}
    assert expected - shown == set()
