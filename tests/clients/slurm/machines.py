"""Stand-ins for Slurm that run a job here: sbatch starts the script, srun the agents, one after the other is a node.

Output is as sbatch(1), squeue(1) and scancel(1) have it. A file `hold` keeps jobs in the queue.
"""

import os
import stat
import sys
from pathlib import Path

PROGRAM = """#!{python} -IS
import os, pathlib, re, signal, subprocess, sys, time
here, name = pathlib.Path(__file__).parent, pathlib.Path(__file__).name
option = lambda text, key: (re.findall("--" + key + "=(\\\\S+)", text) or [None])[-1]
said = " ".join(sys.argv[1:])

def begin(job):
    text = (here / job / "script").read_text()
    env = {{**os.environ, "SLURM_JOB_ID": job, "SLURM_NNODES": option(text, "nodes")}}
    keep = 'sh "$0"; echo $? > "$1"'
    command = ["sh", "-c", keep, str(here / job / "script"), str(here / job / "code")]
    log = open(re.findall('--output="(.*)"', text)[0].replace("%j", job), "ab")
    made = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
    (here / job / "pid").write_text(str(made.pid))

if name == "sbatch":
    job = str(1 + len(list(here.glob("*/script"))))
    (here / job).mkdir()
    (here / job / "script").write_text(sys.stdin.read())
    if not (here / "hold").exists():
        begin(job)
    print(job)
elif name == "squeue":
    if "--me" in sys.argv:
        sys.exit()
    folder = here / option(said, "jobs")
    if not (folder / "pid").exists() and not (here / "hold").exists():
        begin(folder.name)
    if (folder / "state").exists():
        print((folder / "state").read_text() + "|2026-12-01T08:30:00")
    elif not (folder / "pid").exists():
        print("PENDING|2099-01-01T00:00:00")
    elif (folder / "code").exists():
        print(("FAILED" if int((folder / "code").read_text()) else "COMPLETED") + "|2026-12-01T08:30:00")
    else:
        print("RUNNING|2026-12-01T08:30:00")
elif name == "scancel":
    folder = here / sys.argv[-1]
    if not (folder / "state").exists():
        (folder / "state").write_text("CANCELLED")
    if (folder / "pid").exists():
        try:
            os.killpg(int((folder / "pid").read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass
elif name == "scontrol":  # this cluster allows no requeue
    sys.exit(1)
elif name == "srun":
    command = [one for one in sys.argv[1:] if not one.startswith("--kill")]
    nodes = range(int(os.environ["SLURM_NNODES"]))
    started = [subprocess.Popen(command, env={{**os.environ, "SLURMD_NODENAME": "gpu%d" % (1 + n)}}) for n in nodes]
    signal.signal(signal.SIGTERM, lambda number, _: [one.send_signal(number) for one in started])
    sys.exit(max(one.wait() for one in started))
"""


class Machines:
    """A folder on the PATH with such commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hold = folder, folder / "hold"
        folder.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun"):
            (path := folder / name).write_text(PROGRAM.format(python=sys.executable))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def jobs(self) -> list[str]:
        """The jobs so far."""
        return sorted(path.parent.name for path in self.folder.glob("*/script"))

    def group(self, job: str) -> int:
        """The process group of a job."""
        return int((self.folder / job / "pid").read_text())

    def ends(self, job: str, state: str) -> None:
        """Ends a job as the cluster does, with a state."""
        (self.folder / job / "state").write_text(state)
        os.killpg(self.group(job), 9)
