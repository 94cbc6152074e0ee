"""What stands in a job's script: what site.toml says, nothing that a shell or sbatch would read otherwise."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.sitefile import SiteFile, load_site_file
from clients.slurm.checks import look_at_slurm, printed
from clients.slurm.script import TEMPLATE, batch_script
from hansa.errors import UserError

BASE = '[site]\nname = "bern"\nserver = "fl.example.org:9092"\n[training]\n'
MODE = 'mode = "slurm"\nlisten = "10.0.0.5:7443"\nnodes = 2\nprocs = 8\n'


def file_of(folder: Path, slurm: str = "", mode: str = MODE) -> SiteFile:
    folder.mkdir(exist_ok=True)
    (folder / "site.toml").write_text(BASE + mode + (f"[slurm]\n{slurm}\n" if slurm else ""))
    return load_site_file(folder / "site.toml")


def options(script: str) -> list[str]:
    """As sbatch(1) reads them: words as in a shell, up to the first command."""
    lines = script.splitlines()
    assert lines[0].startswith("#!")
    head = lines[: next(n for n, line in enumerate(lines) if line and not line.startswith("#"))]
    return [word for line in head if line.startswith("#SBATCH ") for word in shlex.split(line)[1:]]


def test_a_script_asks_for_what_site_toml_says(tmp_path: Path) -> None:
    said = 'partition = "gpu"\naccount = "ml-7"\ngpus_per_node = "a100:4"\ntime = "12:00:00"\noptions = ["--qos=long"]'
    script = batch_script(file_of(tmp_path, said), tmp_path, "run-1")
    asked = {"--nodes=2", "--ntasks-per-node=1", "--partition=gpu", "--account=ml-7", "--gpus-per-node=a100:4"}
    assert asked | {"--time=12:00:00", "--qos=long", "--signal=B:USR1@60", "--requeue"} <= set(options(script))
    (line,) = (line for line in script.splitlines() if line.startswith("srun "))
    agent = shlex.split(line.removesuffix("&"))
    assert agent[agent.index("--head") + 1] == "10.0.0.5:7443"
    assert agent[agent.index("--run") + 1] == "run-1"


def test_a_folder_of_any_name_is_one_word_for_the_shell_and_for_sbatch(tmp_path: Path) -> None:
    folder = tmp_path / "a $(touch x) & b; %j"
    script = batch_script(file_of(folder), folder, "run-1")
    (output,) = (one for one in options(script) if one.startswith("--output="))
    assert output == f"--output={str(folder).replace('%', '%%')}/logs/slurm-%j.log"
    shown = script.replace("srun --kill-on-bad-exit=0", "printf '%s\\n'")
    done = subprocess.run(["sh"], input=shown, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert str(folder) in done.stdout.splitlines()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline"])
def test_a_folder_that_sbatch_cannot_read_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    with pytest.raises(UserError, match="sbatch cannot read"):
        batch_script(file_of(folder), folder, "run-1")


@pytest.mark.parametrize(
    "said",
    [
        'partition = "gpu\\n#SBATCH --wrap=x"',
        'account = "$(id)"',
        'time = "1 day"',
        'options = ["--qos=a b"]',
        'options = ["--comment=`id`"]',
        'options = ["-A ml"]',
        'options = ["--wrap=id"]',
        'options = ["--arr=1-9"]',  # getopt_long(3): --array
        'options = ["--export=ALL"]',
        'options = ["--nodes=4"]',
    ],
)
def test_what_is_no_plain_word_or_is_hansa_s_own_is_refused(tmp_path: Path, said: str) -> None:
    with pytest.raises(UserError, match=r"site.toml.* \[slurm\] ") as refused:
        file_of(tmp_path, said)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("option", ["--gres=gpu:a100:4", "--constraint=[a|b]", "--exclude=n[1-3]", "--time-min=60"])
def test_options_of_a_cluster_are_taken(tmp_path: Path, option: str) -> None:
    assert option in options(batch_script(file_of(tmp_path, f'options = ["{option}"]'), tmp_path, "run-1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@OPTIONS@\nsrun @AGENT@\n", "must begin with #!"),
        ("#!/bin/sh\nsrun @AGENT@\n", "needs @OPTIONS@ once"),
        ("#!/bin/sh\n@OPTIONS@\nsrun true\n", "@AGENT@ once"),
        ("#!/bin/sh\ntrue\n@OPTIONS@\nsrun @AGENT@\n", "above the first command"),
        (None, "No such file|no such file"),
    ],
)
def test_a_template_without_what_it_needs_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "own.sbatch").write_text(text)
    file = file_of(tmp_path, 'template = "own.sbatch"')
    with pytest.raises(UserError, match=said):
        batch_script(file, tmp_path, "run-1")


def test_a_table_for_another_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'site.toml \[slurm\]: is for \[training\] mode = "slurm"'):
        file_of(tmp_path, "poll = 30", mode="")


def test_the_doctor_asks_the_cluster_and_says_its_words(cluster: Any, tmp_path: Path) -> None:
    file = file_of(tmp_path, 'partition = "gpu"')
    (found,) = look_at_slurm(file, tmp_path)
    assert found.good
    assert cluster.calls("sbatch") == [(["--test-only"], printed(tmp_path))]
    cluster.fails("sbatch", "allocation failure: Invalid partition name specified\n")
    (found,) = look_at_slurm(file, tmp_path)
    assert str(found) == "mend  [slurm]: sbatch: allocation failure: Invalid partition name specified"


def test_the_template_is_a_script_that_sh_can_read() -> None:
    subprocess.run(["sh", "-n", str(TEMPLATE)], check=True)
