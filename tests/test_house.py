"""The distribution, the command and the tools' settings: what a newcomer, a plugin and CI rely on."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import hansa

ROOT = Path(__file__).parents[1]
PACKAGES = {"clients", "hansa", "privacy", "server", "simulations", "strategies"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

PLUGIN = '''
from hansa.errors import RunFailed, UserError


def fine():
    """Does nothing."""


def bad_input():
    raise UserError("site.toml: no name; add one", "site.toml: no data; add a path")


def bad_run():
    raise RunFailed("round 3: no updates; the model of round 2 is saved")


def bug():
    raise LookupError("ours")


def interrupt():
    raise KeyboardInterrupt
'''
COMMANDS = ["fine", "bad-input", "bad-run", "bug", "interrupt"]


def install(folder: Path, name: str, entry_points: list[str]) -> None:
    """A distribution that registers commands, as an installer would leave it on the path."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join(["[hansa.commands]", *entry_points]))


def command(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`hansa` in a process of its own, with what is installed in `path` as well."""
    start = "import sys; from hansa.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    install(tmp_path, "plugin", [f"{name} = plugin:{name.replace('-', '_')}" for name in COMMANDS])
    return tmp_path


def test_help_imports_nothing_heavy() -> None:
    start = "import sys; from hansa.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert {"demo", "simulate"} <= set(done.stdout.split())
    assert "simulations.cli" in imported
    assert imported.isdisjoint({"flwr", "grpc", "matplotlib", "numpy", "pandas", "pydantic", "scipy", "torch"})


def test_version_is_the_distribution_s() -> None:
    assert command("--version").stdout == f"hansa {PYPROJECT['project']['version']}\n"


def test_plugin_adds_a_command(plugin: Path) -> None:
    assert "Does nothing." in command("--help", path=plugin).stdout
    assert command("fine", path=plugin).returncode == 0


def test_user_error_is_a_line_a_problem_and_code_2(plugin: Path) -> None:
    done = command("bad-input", path=plugin)
    assert done.returncode == 2
    assert done.stderr == "error: site.toml: no name; add one\nerror: site.toml: no data; add a path\n"


def test_failed_run_is_a_line_and_code_1(plugin: Path) -> None:
    done = command("bad-run", path=plugin)
    assert done.returncode == 1
    assert done.stderr == "failed: round 3: no updates; the model of round 2 is saved\n"


def test_bug_is_a_traceback_and_code_1(plugin: Path) -> None:
    done = command("bug", path=plugin)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("LookupError: ours\n")


def test_interrupt_is_a_line_and_code_130(plugin: Path) -> None:
    done = command("interrupt", path=plugin)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"


def test_unknown_command_names_the_nearest(plugin: Path) -> None:
    done = command("bad-imput", path=plugin)
    assert done.returncode == 2
    assert 'there is no command "bad-imput"; did you mean bad-input? (commands: ' in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_option_is_code_2() -> None:
    done = command("--nonsense")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_two_commands_of_one_name_are_an_error(plugin: Path) -> None:
    install(plugin, "other", ["fine = other:fine"])
    done = command("fine", path=plugin)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "plugin (plugin:fine)" in done.stderr
    assert "other (other:fine)" in done.stderr


def test_public_names_resolve() -> None:
    """`__all__` is what type checkers believe, `__getattr__` what Python does."""
    assert all(getattr(hansa, name) is not None for name in hansa.__all__)
    assert set(PYPROJECT["project"]["entry-points"]["hansa.public"]) <= set(hansa.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        hansa.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_package_names_are_nobody_else_s() -> None:
    owners = packages_distributions()
    assert {owner for package in PACKAGES for owner in owners.get(package, [])} <= {"hansa"}


def test_mypy_is_strict_without_exceptions() -> None:
    mypy = PYPROJECT["tool"]["mypy"]
    assert mypy["strict"] is True
    assert "disable_error_code" not in mypy
    assert set(mypy["files"]) >= PACKAGES
    for override in mypy["overrides"]:
        assert override.keys() == {"module", "ignore_missing_imports"}
    inline = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "# mypy:" in path.read_text()]
    assert inline == []
