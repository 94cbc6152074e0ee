"""A run has one job: whatever dies between, whatever becomes of it. With recorded answers, not on a cluster."""

from pathlib import Path
from typing import Any

import pytest

from clients.slurm import commands
from clients.slurm.commands import JobId, SlurmSays
from clients.slurm.job import FORGOTTEN, GivenUp, Job
from clients.slurm.states import Meaning

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2\nsrun true\n"
FORGETS = "slurm_load_jobs error: Invalid job id specified\n"


def job(folder: Path, said: list[str], max_restarts: int = 2) -> Job:
    return Job(SCRIPT, "hansa-bern-run", folder / "job", max_restarts, said.append)


def begun(cluster: Any, tmp_path: Path, **more: int) -> tuple[Job, list[str]]:
    cluster.answers("sbatch", "41\n", "42\n", "43\n", "44\n")
    said: list[str] = []
    one = job(tmp_path, said, **more)
    one.begin()
    return one, said


def test_a_script_is_submitted_as_it_is_and_under_the_run_s_name(cluster: Any, tmp_path: Path) -> None:
    one, said = begun(cluster, tmp_path)
    assert cluster.calls("sbatch") == [(["--parsable", "--job-name=hansa-bern-run"], SCRIPT)]
    assert (one.id, (tmp_path / "job").read_text(), said) == (JobId("41"), "41", ["job 41: submitted"])


def test_a_restarted_process_takes_up_the_job_in_its_file(cluster: Any, tmp_path: Path) -> None:
    begun(cluster, tmp_path)
    cluster.answers("squeue", "RUNNING|2026-11-30T18:00:00\n")
    again = job(tmp_path, [])
    again.begin()
    assert again.id == JobId("41")
    assert len(cluster.calls("sbatch")) == 1


def test_a_job_whose_process_died_before_it_wrote_the_file_is_found_by_name(cluster: Any, tmp_path: Path) -> None:
    cluster.answers("squeue", "17|PENDING\n18|COMPLETING\n19_4|PENDING\n")
    one = job(tmp_path, [])
    one.begin()
    assert (one.id, cluster.calls("sbatch")) == (JobId("18"), [])
    assert cluster.calls("squeue")[0][0] == ["--me", "--noheader", "--name=hansa-bern-run", "--format=%i|%T"]


def test_a_file_that_names_a_job_which_has_ended_is_no_job(cluster: Any, tmp_path: Path) -> None:
    begun(cluster, tmp_path)
    cluster.answers("squeue", "COMPLETED|2026-11-30T18:00:00\n", "")
    again = job(tmp_path, [])
    again.begin()
    assert again.id == JobId("42")


@pytest.mark.parametrize("state", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "COMPLETED"])
def test_a_job_lost_by_no_fault_of_its_own_is_submitted_anew_so_many_times(
    cluster: Any, tmp_path: Path, state: str
) -> None:
    one, said = begun(cluster, tmp_path, max_restarts=2)
    cluster.answers("squeue", f"{state}|2026-11-30T18:00:00\n")
    assert [one.look().meaning for _ in range(2)] == [Meaning.QUEUED, Meaning.QUEUED]
    assert one.id == JobId("43")
    assert f"job 41: {state}; submitted anew" in said
    with pytest.raises(GivenUp, match=f"job 43: {state}; it was submitted anew too often"):
        one.look()
    assert len(cluster.calls("sbatch")) == 3


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "FAILED", "OUT_OF_MEMORY"])
def test_a_job_that_would_end_so_again_or_is_unwanted_is_the_last(cluster: Any, tmp_path: Path, state: str) -> None:
    one, _ = begun(cluster, tmp_path)
    cluster.fails("squeue", FORGETS)
    cluster.answers("sacct", f"{state}\n")
    with pytest.raises(GivenUp, match=f"job 41: {state.split()[0]}"):
        one.look()
    assert len(cluster.calls("sbatch")) == 1


def test_a_requeued_job_keeps_its_number(cluster: Any, tmp_path: Path) -> None:
    one, _ = begun(cluster, tmp_path)
    cluster.answers("squeue", "REQUEUED|N/A\n", "PENDING|2026-12-01T08:30:00\n", "RUNNING|2026-12-01T08:31:07\n")
    assert [one.look().meaning for _ in range(3)] == [Meaning.QUEUED, Meaning.QUEUED, Meaning.RUNS]
    assert len(cluster.calls("sbatch")) == 1


def test_a_job_that_nobody_knows_is_lost_only_after_some_looks(cluster: Any, tmp_path: Path) -> None:
    """A controller that has just been started may know nothing for a moment; accounts there need not be."""
    one, said = begun(cluster, tmp_path)
    cluster.fails("squeue", FORGETS)
    cluster.fails("sacct", "Slurm accounting storage is disabled\n")
    assert [one.look().meaning for _ in range(FORGOTTEN - 1)] == [Meaning.UNKNOWN] * (FORGOTTEN - 1)
    one.look()
    assert "job 41: nobody knows it any more; submitted anew" in said


def test_a_controller_that_is_away_is_no_lost_job(cluster: Any, tmp_path: Path) -> None:
    one, _ = begun(cluster, tmp_path)
    cluster.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    for _ in range(2 * FORGOTTEN):
        with pytest.raises(SlurmSays, match="squeue: slurm_load_jobs error: Unable to contact"):
            one.look()
    assert len(cluster.calls("sbatch")) == 1


def test_a_job_is_cancelled_on_its_cluster_and_forgotten(cluster: Any, tmp_path: Path) -> None:
    cluster.answers("sbatch", "41;east\n")
    one = job(tmp_path, [])
    one.begin()
    one.cancel()
    assert cluster.calls("scancel") == [(["--clusters=east", "41"], "")]
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    "error",
    [
        "scancel: error: Kill job error on job id 41: Invalid job id specified\n",
        "scancel: error: Kill job error on job id 41: Job/step already completing or completed\n",
    ],
)
def test_a_job_that_has_ended_is_cancelled_in_silence(cluster: Any, tmp_path: Path, error: str) -> None:
    one, _ = begun(cluster, tmp_path)
    cluster.fails("scancel", error)
    one.cancel()
    assert one.id is None


def test_a_job_that_cannot_be_cancelled_just_now_stays_known(cluster: Any, tmp_path: Path) -> None:
    one, _ = begun(cluster, tmp_path)
    cluster.fails("scancel", "scancel: error: Unable to contact slurm controller\n")
    with pytest.raises(SlurmSays):
        one.cancel()
    assert (tmp_path / "job").read_text() == "41"


def test_a_refusal_is_one_line_without_control_characters(cluster: Any, tmp_path: Path) -> None:
    cluster.fails("sbatch", "sbatch: error: invalid partition\x1b[31m specified: gpu\nsbatch: error: failed\n")
    with pytest.raises(SlurmSays) as refused:
        job(tmp_path, []).begin()
    assert str(refused.value) == "sbatch: error: invalid partition [31m specified: gpu sbatch: error: failed"


def test_without_slurm_the_mend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmSays, match="sbatch is not on the PATH"):
        commands.submit(SCRIPT, "hansa-bern-run")


@pytest.mark.parametrize("text", ["", "Submitted batch job 41", "41 --help", "41;a b", "-1", "41\n42"])
def test_what_is_no_id_is_no_argument_of_a_command(text: str) -> None:
    assert commands.read_id(text) is None
