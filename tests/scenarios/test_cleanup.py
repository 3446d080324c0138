"""A production job of container, monitor and time stamps is killed with -9: nothing of it stays."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from ..cluster.fixtures import wait_for
from .conftest import ROOT, Probe

STAND_IN = Path(__file__).parents[1] / "fakes" / "apptainer"
EXPERIMENT = ROOT / "train_examples" / "digits_ddp" / "conf"

pytestmark = pytest.mark.needs("bubblewrap")


def processes(sweep: Path) -> dict[int, str]:
    """Command lines, by process, of all that belongs to a sweep, on all nodes of this machine; not its launcher's."""
    found = {}
    for proc in Path("/proc").iterdir():
        if not proc.name.isdigit():
            continue
        try:
            env = (proc / "environ").read_bytes()
            words = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            gone = (proc / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        job = (
            str(sweep / ".hpc_hydra" / "jobs") in words
        )  # the shell that runs the script, where it has exported nothing
        if not gone and (f"HPC_HYDRA_SWEEP={sweep}\0".encode() in env or job):
            found[int(proc.name)] = words
    return found


@pytest.mark.parametrize("victim", ["supervisor of a rank", "shell of the job"])
def test_nothing_of_a_production_job_that_is_killed_stays(
    probe: Probe, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment of digits_ddp, its runtime, GPUs, queue and paths replaced by those of this machine."""
    image, tools, scratch = tmp_path / "image", tmp_path / "bin", tmp_path / "scratch"
    for folder in (image / "etc", tools, scratch):
        folder.mkdir(parents=True)
    (tools / "apptainer").symlink_to(STAND_IN)
    out = tmp_path / "sweep" / "saw"  # is mounted
    argv = probe.argv(
        f"hydra.searchpath=[file://{EXPERIMENT}]", "+experiment=enroot_h800", f"scheduler={probe.scheduler}",
        "container=apptainer", f"container.image={image}", "container.workdir=null", "container.mounts=[]",
        "container.remap_root=null", "container.mount_home=null", "system.gpus_per_node=0", "system.gpu_vendor=null",
        "resources.nodes=1", "resources.procs_per_node=2", "resources.cpus_per_proc=1",
        "resources.gpus_per_proc=0", "scheduler.account=null", "scheduler.queue=null", "scheduler.mpi=null",
        "monitor.interval=1", "logging.timestamps=1", f"logging.out={tmp_path}/slurm-%j.out", "rendezvous.port=null",
        "sleep=300", f"out={out}",
    )  # fmt: skip
    env = {"STAND_IN_PYTHON": sys.prefix, "STAND_IN_BASE": sys.base_prefix, "TMPDIR": str(scratch), "USER": "me"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def on() -> bool:
        """All write: the ranks what they saw, the sampler its samples."""
        assert launcher.poll() is None, launcher.communicate()[0]
        samples = [file.read_text().count("\n") for file in tmp_path.glob("sweep/0/logs/*/*.gutil.csv")]
        return bool(samples) and samples[0] > 1 and len(list(out.glob("*.json"))) == 2

    with probe.started(argv=argv, path=tools) as launcher:
        wait_for(on, 120, "all write")
        there = processes(probe.sweep)
        text = "\n".join(there.values())
        assert "node monitor" in text and text.count("bwrap") >= 2, text
        launched = [pid for pid, words in there.items() if words.startswith("srun ") or " spawn " in words]
        shells = [psutil.Process(pid).ppid() for pid in launched]  # of an srun that has forked: srun
        ranks = [pid for pid, words in there.items() if "hpc_hydra.node rank" in words and "bwrap" not in words]
        os.kill(min(set(shells) - set(launched) if victim == "shell of the job" else ranks), signal.SIGKILL)
        wait_for(lambda: not processes(probe.sweep), 200, "all has ended")
        said, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 1, said
    left = [path for path in probe.sweep.rglob("*") if path.suffix == ".tmp" or path.name.startswith(("tmp", ".tmp"))]
    assert left == [] and list(scratch.iterdir()) == []
