"""Whatever stands in a site.toml: it is read, or each mistake is told in a line that gives no secret away."""

from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomlkit
from hypothesis import example, given
from hypothesis import strategies as st

from clients.sitefile import TABLES, load_site_file
from hansa.errors import UserError

SECRET = "pa55-w0rd"
BASE = '[site]\nname = "boston"\nserver = "fl.example.org:9092"\n[network]\ngate = true\n'

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
single = (
    st.none() | text | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans() | st.dates() | st.just("auto")
)
values = st.recursive(
    single, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=5
)
keys = {name: sorted(getattr(table, "model_fields", ())) for name, table in TABLES.items()}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Tables and keys that there are, and some that there are not, with values of any type."""
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(TABLES)) | text, max_size=5, unique=True)):
        known = st.sampled_from(keys[name]) if keys.get(name) else st.nothing()
        found[name] = draw(st.dictionaries(known | text, values, max_size=4) | single)
    return found


def lines(content: bytes) -> list[str]:
    """What is said of a file; nothing, if it is in order."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "site.toml"
        path.write_bytes(content)
        try:
            load_site_file(path)
        except UserError as error:
            said = str(error).splitlines()
            assert said
            assert all(line.removeprefix(f"{folder}/").startswith("site.toml") for line in said)
            assert all(line.isprintable() for line in said)
            return said
    return []


def without_none(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value if one is not None] if isinstance(value, list) else value


@given(content=st.binary(max_size=200) | text.map(str.encode))
@example(content=b"\xff")
@example(content=b"[site]\nname = 'a")
@example(content="[site]\nname = '\u2028'".encode())
def test_any_bytes(content: bytes) -> None:
    assert lines(content)  # none of these has a name and a server


@given(tables=documents())
@example(tables={"site": {"name": "boston", "server": date(2026, 1, 1)}})
@example(tables={"site": {"name": "boston\x7f", "\x1b[31m": 1}})
def test_any_tables(tables: dict[str, Any]) -> None:
    content = tomlkit.dumps({key: without_none(value) for key, value in tables.items() if value is not None})
    lines(content.encode())


forms = st.sampled_from(
    [
        "http://ann:{}@proxy",
        "http://ann:{}@proxy:0",
        "http://ann:{}@proxy:3128/x",
        "https://ann:{}@proxy:3128",
        "ann:{}@proxy:3128",
        "http://{}@proxy:3128",
        "http://ann:{} @proxy:3128",
        "http://ann:{}@@:3128",
        "http://ann@{}:99999",
    ]
)


@given(form=forms, more=text)
def test_no_word_of_a_proxy_that_is_wrong_is_repeated(form: str, more: str) -> None:
    network = {"network": {"gate": True, "proxy": form.format(SECRET) + more}}
    said = lines((BASE.split("[network]")[0] + tomlkit.dumps(network)).encode())
    assert not any(SECRET in line for line in said)
