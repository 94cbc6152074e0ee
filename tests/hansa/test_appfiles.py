"""An app's digest: what changes it, and that Flower's bundle has the same."""

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from hypothesis import given
from hypothesis import strategies as st

from hansa.appfiles import app_digest, app_files
from hansa.cli import main
from hansa.errors import UserError

PYPROJECT = b"""
# A comment, which Flower leaves out.
[project]
name = "heart"
version = "1.0"
[tool.flwr.app]
publisher = "us"
[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"
[tool.flwr.app.config]
hansa-run = ""
lr = 1e-3
[tool.flwr.federations]
default = "local"
"""
APP = {
    "pyproject.toml": PYPROJECT,
    "task.py": b"class Heart: ...\n",
    "models/net.py": b"",
    "federation.toml": b"[federation]\n",
    "README.md": "für alle\n".encode(),
    "more/a.json": b"{}",
    "more/b.jsonl": b"{}",
    "more/c.yaml": b"",
    "more/d.yml": b"",
}
OTHER = {
    "LICENSE": b"",
    "data.csv": b"1",
    "fast.so": b"1",
    ".hidden.py": b"1",
    ".venv/a.py": b"1",
    "__pycache__/task.cpython-311.pyc": b"1",
    "models/__pycache__/b.py": b"1",
    "runs/r/report.json": b"1",
    "build/lib/task.py": b"1",
    "test_task.py": b"1",
    "models/net_test.py": b"1",
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_what_counts_and_what_does_not(tmp_path: Path) -> None:
    write(tmp_path, APP | OTHER)
    (tmp_path / "link.py").symlink_to(tmp_path / "task.py")
    (tmp_path / "linked").symlink_to(tmp_path / "models")
    assert app_files(tmp_path) == APP


def test_a_name_of_flower_s_counts_below_the_top(tmp_path: Path) -> None:
    assert set(app_files(write(tmp_path, {"lib.py": b"", "models/lib/a.py": b""}))) == {"lib.py", "models/lib/a.py"}


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's use of pathspec
@pytest.mark.parametrize("way", ["from the folder", "from the files that count"])
def test_flower_s_bundle_has_the_digest_of_the_folder(tmp_path: Path, way: str) -> None:
    """Flower writes pyproject.toml anew and adds files of its own; the folder it unpacks is still this app."""
    app = write(tmp_path / "heart", APP | OTHER)
    bundle = build_fab_from_disk(app) if way == "from the folder" else build_fab_from_files(app_files(app))[0]
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        archive.extractall(tmp_path / "there")
    assert (tmp_path / "there" / "pyproject.toml").read_bytes() != PYPROJECT
    assert app_digest(app_files(tmp_path / "there")) == app_digest(app_files(app))


def test_the_digest_is_what_its_definition_says() -> None:
    """Worked out by hand from: a context, then length (8 bytes, big-endian) and bytes of path and content, in order."""
    by_hand = b"hansa/app/1\n"
    by_hand += b"\0\0\0\0\0\0\0\4a.py" + b"\0\0\0\0\0\0\0\1x" + b"\0\0\0\0\0\0\0\4b.py" + b"\0\0\0\0\0\0\0\0"
    assert app_digest({"b.py": b"", "a.py": b"x"}) == f"sha256:{hashlib.sha256(by_hand).hexdigest()}"


FILES = st.dictionaries(st.text("ab/.", min_size=1, max_size=4), st.binary(max_size=4), max_size=4)


@given(FILES, FILES)
def test_two_apps_have_one_digest_only_if_they_are_one(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (app_digest(one) == app_digest(other)) == (one == other)


def test_federation_toml_has_no_part_in_the_digest_unless_it_is_elsewhere() -> None:
    """A site reviews code, and bounds what a federation.toml may say; a file of that name in a folder is any file."""
    for settings in (b"", b"[training]\nlr = 0.5\n"):
        assert app_digest({**APP, "federation.toml": settings}) == app_digest(APP)
        assert app_digest({**APP, "models/federation.toml": settings}) != app_digest(APP)


def test_moving_bytes_between_path_and_content_is_seen() -> None:
    assert app_digest({"ab": b"c"}) != app_digest({"a": b"bc"})


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (b'default = "local"', b'default = "far"', True),
        (b"# A comment", b"# Another", True),
        (b"lr = 1e-3", b"lr = 1e-2", False),
        (b"clients.app:app", b"task:app", False),
    ],
)
def test_of_pyproject_counts_what_it_says_to_flower(old: bytes, new: bytes, same: bool) -> None:
    changed = {**APP, "pyproject.toml": PYPROJECT.replace(old, new)}
    assert changed != APP
    assert (app_digest(changed) == app_digest(APP)) is same


@pytest.mark.parametrize("content", [b"= 1", b"\xff"])
def test_a_wrong_pyproject_is_a_line(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^pyproject.toml: not TOML; mend it$"):
        app_digest({"pyproject.toml": content})


@pytest.mark.parametrize("content", [b"", b"tool = 1", b"[tool]\nflwr = 1"])
def test_a_pyproject_without_flower_s_table_is_no_mistake(content: bytes) -> None:
    assert app_digest({"pyproject.toml": content}).startswith("sha256:")


def test_the_command_prints_the_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(write(tmp_path / "heart", APP))]) == 0
    assert capsys.readouterr().out == f"{app_digest(APP)}\n"
    assert main(["digest", "--files", str(tmp_path / "heart")]) == 0
    *named, last = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in named] == sorted(APP)
    assert [line.split(":")[0] for line in named if line.endswith(", not in the digest")] == ["federation.toml"]
    assert last == app_digest(APP)
    assert main(["digest", str(tmp_path / "nowhere")]) == 2
    line = f"error: {tmp_path}/nowhere: no app; give the folder that holds its task and federation.toml\n"
    assert capsys.readouterr().err == line
