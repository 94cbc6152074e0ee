"""The program that a site runs in place of Flower's `flwr-clientapp`: the delivered app does not choose what code runs.

Flower would put the delivered folder first on the path of modules and load the ClientApp that the app's
pyproject.toml names, before anybody has asked whether the app is allowed. Here the ClientApp is always the installed
`clients.app`, and nothing of the delivered folder is imported in this process; `clients.policy.admit` decides on it.
"""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

NAME = "flwr-clientapp"


def write_entry(folder: Path) -> str:
    """Writes the program into a folder, and gives the PATH by which Flower's starter finds it first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    program = folder / NAME
    start = shlex.join([sys.executable, "-P", "-c", "from clients.entry import main; main()", NAME])
    program.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    program.chmod(0o700)
    return str(folder)


def main() -> None:
    """Runs Flower's own program with the installed ClientApp in place of the delivered one."""
    from flwr.clientapp import ClientApp
    from flwr.common.config import get_project_dir
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    import clients.app

    def loading(default_app_ref: str, app_path: str | None, multi_app: bool) -> Callable[[str, str, str], ClientApp]:
        def load(fab_id: str, fab_version: str, fab_hash: str) -> ClientApp:
            os.environ[clients.app.DELIVERED] = str(get_project_dir(fab_id, fab_version, fab_hash))
            return clients.app.app

        return load

    if not hasattr(run_clientapp, "get_load_client_app_fn"):
        raise RuntimeError("this flwr loads apps otherwise; hansa needs flwr 1.42")  # fail closed
    run_clientapp.get_load_client_app_fn = loading
    sys.argv = [NAME, *sys.argv[2:]]
    flwr_clientapp()
