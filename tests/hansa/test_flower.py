import os
from pathlib import Path

import pytest

from hansa.flower import colourless, environment, program, shown


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\x1b[92mINFO \x1b[0m:      ",
        "\x1b[92mINFO \x1b[0m:      ControlServicer.ListNodes",
        '2026-11-30T16:49:38.958Z INFO [uvicorn.access] 127.0.0.1:41208 - "POST /v1/control/list-nodes HTTP/1.1" 200',
        "INFO:     Uvicorn running on http://127.0.0.1:48607 (Press CTRL+C to quit)",
        "\x1b[93mWARNING \x1b[0m:   EXPERIMENTAL: SuperExec authentication is experimental and may change.",
        "\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 1.52 seconds",
        "Successfully installed line to /srv/east/flower/apps/hansa.line.1.0.0.4da09225.",
    ],
)
def test_chatter_is_not_shown(line: str) -> None:
    assert shown(line) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("\x1b[91mERROR \x1b[0m:     database is locked", "ERROR :     database is locked"),
        ("INFORMATION of a task's own", "INFORMATION of a task's own"),
        ("run r1 refused: the app is not allowed here", "run r1 refused: the app is not allowed here"),
    ],
)
def test_what_tells_something_is_shown_without_colours(line: str, text: str) -> None:
    assert shown(line) == text
    assert colourless(line) == text


@pytest.mark.parametrize(("telemetry", "value"), [(False, "0"), (True, "1")])
def test_telemetry_is_as_the_file_says_whatever_the_shell_says(
    telemetry: bool, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", str(1 - int(value)))
    assert environment(Path("/home"), telemetry)["FLWR_TELEMETRY_ENABLED"] == value


@pytest.mark.parametrize("name", ["flower-superlink", "flower-superexec", "flower-supernode", "flwr-serverapp"])
def test_flower_s_programs_are_where_they_are_looked_for(name: str) -> None:
    assert os.access(program(name), os.X_OK)
    assert environment(Path("/home"), False)["PATH"].split(os.pathsep)[0] == os.path.dirname(program(name))
