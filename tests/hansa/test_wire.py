"""The messages of a session, and what comes with importing them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hansa.wire.link_pb2 import Hello, SiteFrame

ROOT = Path(__file__).parents[2]
GENERATED = ["link_pb2.py", "link_pb2.pyi"]


def test_generated_code_is_what_the_generator_makes_of_the_messages(tmp_path: Path) -> None:
    subprocess.run([ROOT / ".ci/wire", tmp_path], check=True, env={**os.environ, "PYTHON": sys.executable})
    for name in GENERATED:
        assert (tmp_path / "hansa/wire" / name).read_bytes() == (ROOT / "hansa/wire" / name).read_bytes()


@pytest.mark.parametrize("module", ["hansa.wire.link_pb2", "hansa.wire.rules"])
def test_messages_bring_no_transport_and_no_torch(module: str) -> None:
    start = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {"grpc", "numpy", "torch", "flwr"}.isdisjoint(done.stdout.split())


def test_version_is_read_from_fields_1_and_2_for_ever() -> None:
    """A Hello of another major by hand: field 1 of the frame, in it fields 1 and 2 as varints (protobuf, encoding)."""
    raw = bytes([0x0A, 4, 0x08, 9, 0x10, 7])
    assert SiteFrame.FromString(raw) == SiteFrame(hello=Hello(major=9, minor=7))
