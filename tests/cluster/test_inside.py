"""Launching inside an allocation that is held already: launch.inside, on the real SLURM."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.cluster.fixtures import Cluster, run

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
SALLOC = ["salloc", "--quiet"]
SEEN = """
import json, os, sys, time
from pathlib import Path
me = {n: os.environ.get(n) for n in ("RANK", "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME",
      "CUDA_VISIBLE_DEVICES", "SLURM_CONF", "SLURM_CPU_BIND", "MASTER_ADDR")}
place = Path(sys.argv[1]); me["began"] = time.time()
(place / f"{sys.argv[2]}.{me['RANK']}.up").touch()
end = time.time() + 60
while len(list(place.glob("*.up"))) < int(sys.argv[3]) and time.time() < end:
    time.sleep(0.05)
me["together"] = len(list(place.glob("*.up")))
(place / f"{sys.argv[2]}.{me['RANK']}.json").write_text(json.dumps(me))
"""


class Inside:
    """Starts `hpc-hydra run -m` in an allocation of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "seen.py").write_text(SEEN)
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_CONF": "/etc/slurm/slurm.conf"}

    def argv(self, *words: str, wait_for: int = 1, keys: str = "0") -> list[str]:
        hydra = [sys.executable, "-m", "hpc_hydra.cli", "run", "-m", "--fill", "scheduler=slurm", f"+key={keys}"]
        command = ["--", "seen.py", str(self.folder), "{key}", str(wait_for)]
        return [*hydra, f"hydra.sweep.dir={self.folder}/sweep", *words, *command]

    def run(self, argv: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        return forking.run(argv, cwd=self.folder, env={**self.env, **env}, timeout=180)

    def saw(self) -> dict[str, dict[str, Any]]:
        return {path.stem: json.loads(path.read_text()) for path in self.folder.glob("*.json")}


@pytest.fixture
def inside(slurm_cluster: Cluster, tmp_path: Path) -> Inside:
    return Inside(tmp_path)


def test_a_sweep_runs_side_by_side_as_far_as_it_fits_and_queues_the_rest(inside: Inside) -> None:
    argv = inside.argv("resources.nodes=1", "resources.procs_per_node=2", "resources.cpus_per_proc=1",
                       "resources.gpus_per_proc=1", wait_for=4, keys="0,1,2")  # fmt: skip
    done = inside.run([*SALLOC, "-N2", "--ntasks-per-node=2", "--gres=gpu:2", "--mem=1000M", *argv])
    assert done.returncode == 0, done.stdout + done.stderr
    saw = inside.saw()
    assert len({one["SLURM_JOB_ID"] for one in saw.values()}) == 1
    assert len({one["SLURM_STEP_ID"] for one in saw.values()}) == 3
    assert {one["SLURMD_NODENAME"] for key, one in saw.items() if key[0] in "01"} == {
        saw["0.0"]["SLURMD_NODENAME"],
        saw["1.0"]["SLURMD_NODENAME"],
    }
    assert saw["0.0"]["SLURMD_NODENAME"] != saw["1.0"]["SLURMD_NODENAME"]
    assert saw["2.0"]["began"] > min(saw["0.0"]["began"], saw["1.0"]["began"])
    assert {(one["WORLD_SIZE"], one["SLURM_CONF"]) for one in saw.values()} == {("2", "/etc/slurm/slurm.conf")}
    manifest = (inside.folder / "sweep/.hpc_hydra/manifest.jsonl").read_text()
    assert '"slurm/step"' in manifest


def test_more_than_the_allocation_has_is_refused_and_submit_makes_a_job(inside: Inside) -> None:
    two = ["resources.nodes=2", "resources.gpus_per_proc=0", "resources.cpus_per_proc=1"]
    script = inside.folder / "both.sh"
    refused, dry, submitted = (
        " ".join(map(_quoted, inside.argv(*two, *more)))
        for more in ([], ["launch.dry_run=true"], ["launch.inside=submit"])
    )
    script.write_text(f"{refused}; echo refused $?; {dry} >dry 2>&1; {submitted}; echo submitted $?\n")
    done = inside.run([*SALLOC, "-N1", "-n2", "--mem=1000M", "bash", str(script)])
    assert "refused 2" in done.stdout, done.stdout + done.stderr
    assert re.search(r"a run needs 2 nodes, but the allocation \d+ has 1", done.stderr)
    assert "launch.inside=submit" in done.stderr
    assert "submitted 0" in done.stdout, done.stdout + done.stderr
    saw = inside.saw()
    assert {one["WORLD_SIZE"] for one in saw.values()} == {"2"}
    assert saw["0.0"]["SLURM_JOB_ID"] not in done.stderr.partition("allocation ")[2].split()[0]


def test_a_step_that_holds_everything_shares_it(inside: Inside) -> None:
    """`srun --pty bash` is a step itself; one in it would wait for ever."""
    argv = inside.argv(
        "resources.procs_per_node=2", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0", wait_for=2
    )
    done = inside.run([*SALLOC, "-N1", "-n2", "--mem=1000M", "srun", "-n1", "-c2", *argv])
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["SLURM_STEP_ID"] for one in inside.saw().values()} == {"1"}


def test_variables_of_a_dead_job_do_not_fool_it(inside: Inside) -> None:
    job = run("sbatch", "--parsable", "-W", "-D", inside.folder, "-o", "/dev/null", "--wrap", "true").stdout.strip()
    argv = inside.argv("resources.gpus_per_proc=0", "launch.dry_run=true")
    left = {"SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    done = inside.run(argv, **left)
    assert "sbatch --parsable" in done.stdout, done.stdout + done.stderr
    done = inside.run([*argv[:-5], "launch.inside=step", *argv[-5:]], **left)
    assert done.returncode == 2
    assert "not inside a running allocation of slurm" in done.stderr


def test_a_shell_of_srun_pty_is_no_rank_and_its_steps_are(inside: Inside) -> None:
    who = (
        "import os; from hpc_hydra.schedulers.registry import adapter_for;"
        "i = adapter_for('slurm').rank_info(os.environ);"
        "os.write(1, f'who {i and i.world_size}\\n'.encode())"  # one write: ranks share the pipe
    )
    (inside.folder / "who.py").write_text(who)
    shell = f"{sys.executable} who.py; srun --overlap -n2 {sys.executable} who.py"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        ["srun", "-N2", "-n2", "--mem=1000M", "--pty", "bash", "-c", shell],
        cwd=inside.folder, env=inside.env, stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    text = ""
    try:
        while block := os.read(leader, 4096):
            text += block.decode(errors="replace")
    except OSError:  # the terminal has gone with its last process
        pass
    assert process.wait(200) == 0, text
    assert sorted(re.findall(r"who (\w+)", text)) == ["2", "2", "None"], text


def test_one_run_attached_to_the_console_is_a_step_too(inside: Inside) -> None:
    argv = [sys.executable, "-m", "hpc_hydra.cli", "run", "scheduler=slurm", "resources.gpus_per_proc=0",
            "resources.cpus_per_proc=1", "--", "bash", "-c", 'echo job $SLURM_JOB_ID step $SLURM_STEP_ID']  # fmt: skip
    done = inside.run([*SALLOC, "-N1", "-n1", "--mem=500M", "bash", "-c", 'echo "in $SLURM_JOB_ID"; "$@"', "x", *argv])
    job = re.search(r"in (\d+)", done.stdout)
    assert job and f"job {job[1]} step 0" in done.stdout, done.stdout + done.stderr


STOPPED = """
import signal, sys, time
from pathlib import Path
def bye(*_):
    time.sleep(1); Path(sys.argv[1], "saved." + sys.argv[2]).touch(); sys.exit(1)
signal.signal(signal.SIGTERM, bye)
Path(sys.argv[1], "up." + sys.argv[2]).touch()
time.sleep(100)
"""


@pytest.mark.parametrize("word", ["cancelled", "timeout"])
def test_a_step_is_told_to_end_before_it_is_killed(inside: Inside, word: str) -> None:
    (inside.folder / "seen.py").write_text(STOPPED)
    argv = inside.argv(
        "resources.gpus_per_proc=0", "resources.cpus_per_proc=1", "resources.procs_per_node=1", keys="0,1"
    )
    if word == "timeout":
        argv.insert(argv.index("--fill"), "resources.time_limit=15s")
    hpc = f"{sys.executable} -m hpc_hydra.cli"
    lines = [" ".join(map(_quoted, argv)) + " &"]
    if word == "cancelled":
        lines += [f"for i in {{1..300}}; do [ -e up.0 -a -e up.1 ] && break; sleep 0.1; done; {hpc} cancel sweep"]
    script = inside.folder / "both.sh"
    script.write_text("\n".join([*lines, "wait", f"{hpc} status sweep"]))
    done = inside.run([*SALLOC, "-N1", "-n2", "--mem=1000M", "-t5", "bash", str(script)])
    assert f"2 runs: 2 {word}" in done.stdout, done.stdout + done.stderr
    assert len(list(inside.folder.glob("saved.*"))) == 2


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def test_defaults_of_the_shell_reach_a_job_and_a_resume_in_an_allocation_is_noted(inside: Inside) -> None:
    sizes = [
        "resources.nodes=1",
        "resources.procs_per_node=1",
        "resources.gpus_per_proc=0",
        "resources.cpus_per_proc=1",
    ]
    hpc = [sys.executable, "-m", "hpc_hydra.cli"]
    fixed = [f"hydra.sweep.dir={inside.folder}/sweep", "scheduler=slurm", *sizes]
    command = ["--", "sh", "-c", 'echo "in $SLURM_JOB_PARTITION"; exit 3']
    own = {"SBATCH_PARTITION": "debug", "SBATCH_TIMELIMIT": "nonsense", "SLURM_CPU_BIND": "nonsense"}
    first = inside.run([*hpc, "run", "-m", *fixed, *command], **own)
    assert first.returncode == 1, first.stderr
    assert "scheduler.queue=debug (SBATCH_PARTITION)" in first.stderr
    assert "not used: SBATCH_TIMELIMIT=nonsense, SLURM_CPU_BIND=nonsense of your shell" in first.stderr
    assert "in debug" in inside.run([*hpc, "logs", "0", f"{inside.folder}/sweep"]).stdout
    held = [*SALLOC, "--nodes=1", "--cpus-per-task=1", "--partition=gpu"]
    again = inside.run([*held, *hpc, "resume", f"{inside.folder}/sweep"], **own)
    assert re.search(r"note: they run as steps of the allocation \d+", again.stderr), again.stderr
    assert "in gpu" in inside.run([*hpc, "logs", "0", f"{inside.folder}/sweep"]).stdout
