"""`scripts/slurm_sweep.sh` with stand-ins for Slurm's and Ray's commands on the PATH."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "slurm_sweep.sh"

#: Fake commands that log their arguments. Ray's nodes run until they are stopped.
STAND_INS = {
    "scontrol": "printf 'n1\\nn2\\nn3\\n'",
    "srun": """while [ "${1#--}" != "$1" ]; do case "$1" in
        --overlap) shift ;; --nodelist) export NODE="$2"; shift 2 ;; *) asked="$asked $1 $2"; shift 2 ;;
        esac; done; [ "$1" = bash ] && echo '127.0.1.1 fe80::1 10.1.2.3 10.9.9.9' || exec "$@" ${asked:+"$asked"}""",
    "ray": """case "$1" in
        status) [ -z "$BROKEN" ] && grep -q -- --head "$LOG" ;;
        start) echo "$NODE: $*" >>"$LOG"; [ "$BROKEN" ] && exit 1; echo $$ >>"$LOG.pids"; exec sleep 100 ;;
        esac""",
    "python": 'case "$2" in *secrets*) echo token ;; *) grep -c start "$LOG" ;; esac',
    "audiomarathon": 'echo "audiomarathon $* $RAY_AUTH_TOKEN" >>"$LOG"; exit 3',
    "sleep": 'exec /bin/sleep "$(echo "$1" | sed s/^2$/0.05/)"',
}


def call(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a job of three nodes."""
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_PER_TASK": "32", "SLURM_GPUS_ON_NODE": "4"}
    clean = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "LOG": str(folder / "log")} | job | env
    command = ["bash", str(SCRIPT), "tau", "--methods", "random,fast v"]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60, check=False)


def runs(pid: str) -> bool:
    """Whether a process runs; one that has ended, and waits only for its parent to look, does not."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes() != b""
    except OSError:
        return False


def test_the_slurm_script_starts_a_ray_node_on_each_machine_and_stops_them(tmp_path: Path) -> None:
    done = call(tmp_path)
    assert done.returncode == 3, done.stderr  # the sweep's exit code
    rest = "--num-cpus 32 --num-gpus 4 --disable-usage-stats --block  --nodes 1 --ntasks 1 --cpus-per-task 32"
    *started, swept = (tmp_path / "log").read_text().splitlines()
    assert started[0] == (f"n1: start --head --node-ip-address 10.1.2.3 --port 20041 --include-dashboard false {rest}")
    assert sorted(started[1:]) == [f"{node}: start --address 10.1.2.3:20041 {rest}" for node in ("n2", "n3")]
    assert swept == "audiomarathon sweep tau --methods random,fast v --executor ray --address 10.1.2.3:20041 token"
    assert "3 of 3 nodes, 4 GPUs each" in done.stderr
    pids = (tmp_path / "log.pids").read_text().split()
    assert len(pids) == 3
    for _ in range(100):
        if not any(map(runs, pids)):
            return
        time.sleep(0.05)
    pytest.fail("a Ray node is left")


@pytest.mark.parametrize(
    ("env", "code", "message"),
    [({"SLURM_JOB_ID": ""}, 2, "error: not inside a Slurm job"), ({"BROKEN": "1"}, 1, "10.1.2.3:20041 has ended")],
)
def test_the_slurm_script_prints_the_reason_if_it_cannot_start(tmp_path, env, code, message) -> None:
    done = call(tmp_path, **env)
    assert done.returncode == code
    assert message in done.stderr
