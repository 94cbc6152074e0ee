"""Makes the peers' environments in .peers/, once: each has packages of its own and this environment's torch and NumPy.

An environment that is there for the same requirements is left alone. Arguments go to pip.
"""

import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).parents[2] / ".peers"
PEERS = {
    "flower": ["flwr[simulation]==1.42.0"],
    "pfl": ["pfl[pytorch]==0.6.0"],
    "fedjax": ["fedjax==0.0.17", "jax[cpu]==0.7.2"],
}


def python(peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return HOME / peer / "bin" / "python"


def ready(peer: str) -> bool:
    """Whether a peer's environment is there, whole, and for these requirements."""
    stamp = HOME / peer / "installed"
    return stamp.exists() and stamp.read_text().split() == PEERS[peer]


def install(peer: str, arguments: list[str]) -> str | None:
    """Makes an environment; what pip said where it failed."""
    folder = HOME / peer
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    packages = next((folder / "lib").iterdir()) / "site-packages"
    shared = packages / "shared.pth"  # comes last on the path, after what the peer has of its own
    shared.write_text(f"{Path(torch.origin).parents[1]}\n")
    pip = [python(peer), "-m", "pip", "install", "--quiet", *arguments, *PEERS[peer]]
    done = subprocess.run(pip, text=True, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        return (done.stderr.strip() or "pip said nothing").splitlines()[-1]
    (folder / "installed").write_text("\n".join(PEERS[peer]))
    return None


def main() -> None:
    """Makes what is not there; ends with 1 where a peer cannot be had."""
    missing = 0
    for peer in PEERS:
        reason = None if ready(peer) else install(peer, sys.argv[1:])
        print(f"{peer:<8} " + (f"cannot be had: {reason}" if reason else f"in {HOME / peer}"))
        missing += reason is not None
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
