"""What Slurm prints, in the forms of squeue(1) and sacct(1), and what it means."""

from datetime import datetime

import pytest

from clients.slurm.states import TABLE, Meaning, Seen, from_sacct, from_squeue

# squeue(1), JOB STATE CODES, of Slurm 25.05
CODES = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "CONFIGURING",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "RESV_DEL_HOLD",
    "REVOKED",
    "RUNNING",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
    "TIMEOUT",
    "UPDATE_DB",
]


def test_each_state_of_the_manual_means_one_thing() -> None:
    assert sorted(state for states in TABLE.values() for state in states) == sorted(CODES)


@pytest.mark.parametrize(
    ("output", "seen", "meaning"),
    [
        ("PENDING|N/A\n", Seen("PENDING"), Meaning.QUEUED),
        ("PENDING|2026-11-30T18:00:00\n", Seen("PENDING", datetime(2026, 11, 30, 18).timestamp()), Meaning.QUEUED),
        ("CLUSTER: east\nRUNNING|N/A\n", Seen("RUNNING"), Meaning.RUNS),
        ("PREEMPTED|Unknown\n", Seen("PREEMPTED"), Meaning.AGAIN),
        ("A_NEW_ONE|N/A\n", Seen("A_NEW_ONE"), Meaning.UNKNOWN),
    ],
)
def test_squeue_is_read(output: str, seen: Seen, meaning: Meaning) -> None:
    assert from_squeue(output) == seen
    assert seen.meaning == meaning


def test_a_job_that_is_not_in_the_queue_is_none() -> None:
    assert from_squeue("") is None


@pytest.mark.parametrize(
    ("output", "meaning"),
    [
        ("TIMEOUT\n", Meaning.AGAIN),
        ("NODE_FAIL\n", Meaning.AGAIN),
        ("CANCELLED by 1000\n", Meaning.CANCELLED),
        ("OUT_OF_MEMORY\n", Meaning.BROKEN),
        ("", Meaning.UNKNOWN),
    ],
)
def test_sacct_is_read(output: str, meaning: Meaning) -> None:
    assert from_sacct(output).meaning == meaning
