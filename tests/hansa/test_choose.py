"""A class by its name: built in, registered by another distribution, or in a file of the user's."""

from pathlib import Path
from pkgutil import iter_modules

import pytest

import simulations.datasets
import strategies
from hansa.choose import choose
from hansa.errors import UserError
from hansa.tables import Table
from simulations.datasets.base import FederatedDataset
from strategies.base import Strategy
from strategies.fedprox import FedProx

MINE = "from strategies.base import Strategy\n\nclass Mine(Strategy):\n    pass\n"


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, *entry_points: str) -> None:
    """A distribution that registers strategies, as an installer would leave it on the path."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join(["[hansa.strategies]", *entry_points]))


def problem(name: str, folder: Path = Path()) -> str:
    with pytest.raises(UserError) as raised:
        choose("strategies", name, Strategy, folder)
    (line,) = raised.value.problems
    return line


def test_a_built_in_s_file_name_is_its_name() -> None:
    assert choose("strategies", "fedprox", Strategy) is FedProx


@pytest.mark.parametrize(
    ("kind", "base", "folder", "beside"),
    [
        ("strategies", Strategy, strategies.__path__, {"base", "fedopt"}),
        ("datasets", FederatedDataset, simulations.datasets.__path__, {"base", "download"}),
    ],
)
def test_every_file_is_a_built_in(kind: str, base: type[Table], folder: list[str], beside: set[str]) -> None:
    names = {module.name for module in iter_modules(folder)} - beside
    assert len(names) >= 4
    for name in names:
        chosen = choose(kind, name, base)
        assert issubclass(chosen, base)
        assert chosen.__module__.endswith(f".{name}")


@pytest.mark.parametrize("name", ["base", "", "no.such", "../fedavg", "fedprox ", "__init__"])
def test_what_is_no_built_in_is_refused(name: str) -> None:
    assert problem(name).startswith(f'no strategy "{name}"')


def test_an_unknown_name_gets_the_nearest_and_the_list(site_packages: Path) -> None:
    install(site_packages, "acme", "fedacme = plugin:Mine")
    line = problem("fedacne")
    assert line.startswith('no strategy "fedacne"; did you mean "fedacme"? (there are: ')
    assert {"ditto", "fedacme", "fedavg", "fedprox", "scaffold"} <= set(
        line.rpartition(": ")[2].removesuffix(")").split(", ")
    )


def test_a_registered_class_is_found(site_packages: Path) -> None:
    (site_packages / "choose_plugin.py").write_text(MINE)
    install(site_packages, "acme", "mine = choose_plugin:Mine")
    assert choose("strategies", "mine", Strategy).__module__ == "choose_plugin"


def test_a_plugin_cannot_take_a_built_in_s_name(site_packages: Path) -> None:
    install(site_packages, "acme", "fedprox = choose_plugin:Mine")
    assert problem("fedprox") == (
        'strategy "fedprox" is given by two installed distributions: hansa and acme (choose_plugin:Mine); uninstall '
        "one of them"
    )


def test_two_plugins_cannot_have_one_name(site_packages: Path) -> None:
    install(site_packages, "acme", "mine = choose_plugin:Mine")
    install(site_packages, "zenith", "mine = other:Mine")
    line = problem("mine")
    assert "acme (choose_plugin:Mine)" in line
    assert "zenith (other:Mine)" in line


def test_a_plugin_that_cannot_be_imported_is_one_line(site_packages: Path) -> None:
    install(site_packages, "acme", "mine = no_such_module:Mine")
    assert problem("mine") == (
        'strategy "mine" of acme (no_such_module:Mine) cannot be loaded: '
        "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_plugin_of_another_kind_is_one_line(site_packages: Path) -> None:
    install(site_packages, "acme", "mine = collections:Counter")
    assert problem("mine") == 'strategy "mine" of acme (collections:Counter) is not a subclass of Strategy'


def test_a_class_in_a_file_is_relative_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    assert issubclass(choose("strategies", "mine.py:Mine", Strategy, tmp_path), Strategy)
    assert problem("mine.py:Yours", tmp_path) == "strategy: mine.py has no class Yours; did you mean Mine?"
