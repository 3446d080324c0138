"""What each way of starting `train.py` means: one test a row of the table in the design, section 7."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forking

from .conftest import APP, LIGHT, ROOT, Probe


def start(*args: str, cwd: Path, env: dict[str, str] | None = None, before: tuple[str, ...] = ()) -> tuple[int, str]:
    argv = [*before, sys.executable, str(APP / "probe.py"), *args]
    done = forking.run(argv, cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, timeout=120)
    return done.returncode, done.stdout + done.stderr


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_plainly_with_one_process_it_is_a_world_of_one_in_place(tmp_path: Path) -> None:
    code, text = start(f"out={tmp_path / 'saw'}", "scheduler=local", "mode=gloo", cwd=tmp_path, env=LIGHT)
    assert code == 0, text
    (seen,) = Probe(tmp_path, "local").out.glob("*.json")
    assert seen.name == "x.0.json"
    assert (tmp_path / "outputs").is_dir()


@pytest.mark.hydra
def test_plainly_with_several_processes_it_is_one_launched_run(tmp_path: Path) -> None:
    code, text = start(f"out={tmp_path / 'saw'}", "scheduler=local", "resources.procs_per_node=2", cwd=tmp_path)
    assert code == 0, text
    assert set(Probe(tmp_path, "local").saw()) == {(0, 0), (0, 1)}


@pytest.mark.hydra
def test_multirun_in_the_primary_config_is_a_launch(tmp_path: Path) -> None:
    probe = Probe(tmp_path, "local")
    args = [f"out={probe.out}", f"hydra.sweep.dir={probe.sweep}", "scheduler=local", "resources.procs_per_node=2"]
    code, text = start(*args, "hydra.mode=MULTIRUN", cwd=tmp_path)
    assert code == 0, text
    assert set(probe.saw()) == {(0, 0), (0, 1)}


@pytest.mark.torch
def test_with_rank_and_world_size_set_it_is_a_rank(tmp_path: Path) -> None:
    """Plain torchrun, which sets them."""
    out = tmp_path / "saw"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(APP / "probe.py"),
         f"out={out}", "scheduler=local", "resources.procs_per_node=2"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["x.0.json", "x.1.json"]


@pytest.mark.cluster
def test_as_one_of_several_scheduler_tasks_it_is_a_rank(slurm_cluster, tmp_path: Path) -> None:
    """`srun python train.py`, by hand."""
    before = ("srun", "-N2", "--ntasks-per-node=2", "--export=ALL")
    args = ["mode=gloo", "resources.nodes=2", "resources.procs_per_node=2", "scheduler=slurm"]
    code, text = start(f"out={tmp_path / 'saw'}", *args, cwd=tmp_path, before=before, env=LIGHT)
    assert code == 0, text
    assert sorted(p.name for p in (tmp_path / "saw").iterdir()) == [f"x.{r}.json" for r in range(4)]
    assert '"sum": 10.0' in (tmp_path / "saw" / "x.3.json").read_text()


@pytest.mark.hydra
def test_with_m_on_a_rank_it_is_refused(tmp_path: Path) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code, text = start("-m", f"out={tmp_path / 'saw'}", "scheduler=local", cwd=tmp_path, env=env)
    assert code == 2 and "rank" in text and "Traceback" not in text
    assert not (tmp_path / "saw").exists()


def test_debug_runs_one_rank_in_this_process(tmp_path: Path) -> None:
    """pdb works there: standard input is the user's."""
    script = tmp_path / "train.py"
    script.write_text(
        "import hydra\n"
        f"@hydra.main(version_base=None, config_path={str(APP / 'conf')!r}, config_name='config')\n"
        "def main(cfg):\n    x = 41\n    breakpoint()\n    print('after', x)\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "train.py", "-m", "out=x", "scheduler=local", "resources.procs_per_node=4",
         "launch.debug=true"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, input="p x + 1\nc\n",
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "42" in done.stdout and "after 41" in done.stdout


@pytest.mark.parametrize("scheduler", ["local", "slurm"])
def test_a_dry_run_touches_nothing_and_needs_no_scheduler(tmp_path: Path, scheduler: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    before = listing(tmp_path)
    code, text = start(
        "-m", "out=x", f"scheduler={scheduler}", "resources.nodes=1", "note=a,b", "launch.dry_run=true",
        cwd=work, env={"PATH": "/nonexistent"},
    )  # fmt: skip
    assert code == 0, text
    assert listing(tmp_path) == before
    assert "#!/bin/bash" in text and "hpc_hydra.node" in text and "note=a" in text
    if scheduler == "slurm":
        assert "sbatch" in text and "#SBATCH --nodes=1" in text and "#SBATCH --array=0-1" in text


def test_frontier_without_slurm(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    args = ["-m", "out=x", "system=frontier", "resources.nodes=2,4"]
    code, text = start(*args, "launch.dry_run=script", cwd=work, env={"PATH": "/nonexistent"})
    assert code == 0, text
    assert "#SBATCH --nodes=2" in text and "#SBATCH --nodes=4" in text
    assert text.count("#SBATCH --ntasks-per-node=8") == 2 and text.count("#SBATCH --cpus-per-task=7") == 2
    assert "FI_CXI_DEFAULT_CQ_SIZE" in text and "docs.olcf.ornl.gov" in text.replace(
        "olcf-user-docs", "docs.olcf.ornl.gov"
    )
    asked = ("scheduler.account=abc123", "resources.time_limit=1h")
    code, text = start(*args, *asked, cwd=work, env={"PATH": "/nonexistent"})
    assert code == 2
    assert "sbatch" in text and "launch.dry_run=true" in text and "Traceback" not in text
    assert not listing(work)


def test_setup_only_leaves_scripts_that_run_by_hand(local_probe: Probe) -> None:
    result = local_probe.run("note=a,b", "resources.procs_per_node=2", "launch.setup_only=true")
    assert result.code == 0, result.text
    assert not result.probes
    (script,) = (result.sweep / ".hpc_hydra" / "jobs").glob("*.sh")
    subprocess.run(["bash", str(script), "1"], check=True, timeout=200, cwd="/")
    assert {k: v["note"] for k, v in local_probe.saw().items()} == {(1, 0): "b", (1, 1): "b"}


def test_a_slurm_script_runs_by_hand(slurm_probe: Probe) -> None:
    result = slurm_probe.run("note=a,b", "resources.procs_per_node=2", "launch.setup_only=true")
    assert result.code == 0, result.text
    (script,) = (result.sweep / ".hpc_hydra" / "jobs").glob("*.sh")
    subprocess.run(["sbatch", "--wait", str(script)], check=True, timeout=100, cwd="/")
    assert {k: v["note"] for k, v in slurm_probe.saw().items()} == {(0, 0): "a", (0, 1): "a", (1, 0): "b", (1, 1): "b"}
