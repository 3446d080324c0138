"""`hpc-hydra run` and `torchrun` on the real SLURM: attached, in the background, within an allocation."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.fixtures import Cluster, wait_for
from tests.unit.cli.running import SHOW, argv, environment, files, hpc_hydra, lines

pytestmark = pytest.mark.cluster
SMALL = ("-c", "1", "--gpus-per-proc", "0")


@pytest.fixture
def here(tmp_path: Path, slurm_cluster: Cluster) -> Path:
    (tmp_path / "train.py").write_text(SHOW)
    return tmp_path


def test_a_blocking_run_is_attached_on_all_nodes(here: Path) -> None:
    done = hpc_hydra("torchrun", "-N", "2", "-n", "2", *SMALL, "train.py", "a b", "$(id)", cwd=here)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "out") == [f"out {rank}/4 ['a b', '$(id)']" for rank in range(4)]
    assert done.stdout.count("\n") == 4  # nothing but the command's own
    assert lines(done.stderr, "err") == [f"err {rank}" for rank in range(4)]
    assert files(here) == ["train.py"]


def test_the_exit_code_is_the_scripts_own(here: Path) -> None:
    done = hpc_hydra("torchrun", "-n", "2", *SMALL, "train.py", cwd=here, env={"CODE": "7"})
    assert done.returncode == 7
    assert files(here) == ["train.py"]


def test_standard_input_reaches_the_ranks(here: Path) -> None:
    done = hpc_hydra("torchrun", "-N", "2", "-n", "1", *SMALL, "--", "cat", cwd=here, stdin="hello\n")
    assert done.stdout == "hello\nhello\n"


def test_setup_lines_run_on_each_node_and_their_exports_reach_all(here: Path) -> None:
    done = hpc_hydra(
        "run", "resources.nodes=2", "resources.procs_per_node=1", "resources.gpus_per_proc=0",
        "resources.cpus_per_proc=1", "scheduler.setup_lines=['export A=\"b c\"','hostname >> hosts']", "--",
        "bash", "-c", 'echo "$A"', cwd=here,
    )  # fmt: skip
    assert done.stdout == "b c\nb c\n", done.stderr
    assert len({name for name in (here / "hosts").read_text().split() if name.startswith("node")}) == 2


def test_hosts_are_saved(here: Path) -> None:
    done = hpc_hydra("torchrun", "-v", "-N", "2", "-n", "1", *SMALL, "train.py", cwd=here)
    assert done.returncode == 0, done.stderr
    hosts = (here / "hpc_launcher_hostlist.txt").read_text().split()
    assert len(hosts) == 2
    assert all(re.fullmatch(r"node0\d", host) for host in hosts)


def test_in_the_background_with_a_directory_of_its_own(here: Path, slurm_cluster: Cluster) -> None:
    done = hpc_hydra("torchrun", "--bg", "-J", "my job", "-n", "2", *SMALL, "train.py", "x", cwd=here)
    assert done.returncode == 0, done.stderr
    [made] = [path for path in here.iterdir() if path.is_dir()]
    wait_for(lambda: (made / "outcome.json").exists(), timeout=120)
    assert json.loads((made / "outcome.json").read_text())["status"] == "completed"
    logs = sorted(made.glob("logs/*/rank_*.log"))
    assert [lines(log.read_text(), "out") for log in logs] == [[f"out {rank}/2 ['x']"] for rank in (0, 1)]


def test_a_batch_script_keeps_its_directives_but_those_that_were_typed(here: Path) -> None:
    (here / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH -J mine\n#SBATCH -o out/%j.txt\n#SBATCH --error=err.txt\n"
        'echo "$SLURM_JOB_NUM_NODES $SLURM_JOB_NAME $1 $(cat data)"; srun true; echo oops >&2; exit 3\n'
    )
    (here / "data").write_text("here")
    (here / "out").mkdir()
    done = hpc_hydra("torchrun", "--batch-script", "job.sh", "a b", cwd=here)
    assert (done.returncode, done.stdout) == (3, "3 mine a b here\n")
    assert "oops\n" in done.stderr
    done = hpc_hydra("torchrun", "--batch-script", "job.sh", "-N", "2", "-J", "other", "--bg", "a b", cwd=here)
    assert done.returncode == 0
    wait_for(lambda: [out for out in (here / "out").iterdir() if "2 other a b here\n" in out.read_text()], timeout=120)


def test_a_signal_cancels_a_batch_script_that_is_waited_for(here: Path) -> None:
    (here / "job.sh").write_text("#!/bin/bash\n#SBATCH --output=out.txt\necho up; sleep 600\n")
    process = subprocess.Popen(
        argv("torchrun", "--batch-script", "job.sh"), cwd=here, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 143
    assert "is cancelled" in err


def test_within_an_allocation_it_is_a_step(here: Path) -> None:
    words = argv("torchrun", "-N", "2", "-n", "1", *SMALL, "train.py")
    allocation = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1"]
    done = subprocess.run(
        [*allocation, *words], cwd=here, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "out") == ["out 0/2 []", "out 1/2 []"]
    assert "Granted" not in done.stderr
    more = subprocess.run(
        [*allocation, *argv("torchrun", "-N", "3", "-n", "1", *SMALL, "train.py")],
        cwd=here, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert more.returncode == 2
    assert "resources.nodes" in more.stderr


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_job(here: Path, slurm_cluster: Cluster, signum: int, code: int) -> None:
    (here / "wait.py").write_text("import time; print('up', flush=True); time.sleep(600)\n")
    process = subprocess.Popen(
        argv("torchrun", "-N", "2", "-n", "1", *SMALL, "wait.py"), cwd=here, env=environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    process.send_signal(signum)
    _, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    assert ("launch.bg=true" in err) == (signum == signal.SIGHUP)
    assert "could not be written" not in err
    assert files(here) == ["wait.py", "train.py"] or files(here) == ["train.py", "wait.py"]


def test_ctrl_c_in_a_terminal_is_130(here: Path) -> None:
    """salloc takes the terminal: only the job's own script sees the key, and srun's code would be 137."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(here)
        words = argv("torchrun", "-n", "1", *SMALL, "--", "sh", "-c", "echo up; exec sleep 600")
        os.execvpe(words[0], words, environment())
    seen = b""
    with contextlib.suppress(OSError):  # the terminal has gone
        while select.select([terminal], [], [], 60)[0]:
            seen += os.read(terminal, 4096)
            if seen.count(b"up\r\n") == 1 and b"^C" not in seen:
                os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130, seen
    os.close(terminal)


def test_a_killed_launcher_gives_the_allocation_back(here: Path) -> None:
    (here / "wait.py").write_text("import os, time; print(os.environ['SLURM_JOB_ID'], flush=True); time.sleep(600)\n")
    process = subprocess.Popen(
        argv("torchrun", "-n", "1", *SMALL, "wait.py"), cwd=here, env=environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    job = process.stdout.readline().strip()
    process.kill()
    process.communicate(timeout=200)

    def gone() -> bool:
        asked = ["squeue", "-h", "-j", job, "-t", "PENDING,RUNNING,COMPLETING"]
        return not subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()

    wait_for(gone, timeout=200)


def test_runs_of_an_array_know_their_ids_and_return_results(here: Path) -> None:
    script = 'echo "$1 $HPC_HYDRA_JOB_ID"; echo "{\\"at\\": \\"$1\\"}" > "$HPC_HYDRA_RESULT"'
    done = hpc_hydra(
        "run", "-m", "scheduler=slurm", "resources.nodes=2", "resources.procs_per_node=1", "resources.gpus_per_proc=0",
        "launch.launch_dir=swept", "--fill", "+x=1,2", "--",
        "bash", "-c", script, "_", "{num} {job_id} {output_dir} {x}", cwd=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(hpc_hydra("results", "--csv", "swept", cwd=here).stdout)))
    assert [row["at"] for row in rows] == [f"{n} {rows[n]['job_id']} {here}/swept/{n} {n + 1}" for n in (0, 1)]
    assert all(len(row["hosts"].split()) == 2 for row in rows)
    for row in rows:
        (log,) = Path(row["dir"]).glob("logs/*/rank_1.log")
        assert log.read_text().split()[-1] == row["job_id"]
