"""What was asked is what was submitted (scenarios B03, B06, B10, B12, B14)."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.awaiting import await_true

from .conftest import ROOT, Probe


def shim(tmp_path: Path, name: str, body: str) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)
    return folder


def test_cpus_per_task_is_stated_on_the_step_itself(slurm_probe: Probe, tmp_path: Path) -> None:
    calls = tmp_path / "srun.calls"
    path = shim(tmp_path, "srun", f'printf "%s\\n" "$*" >> {calls}\nexec /usr/bin/srun "$@"')
    outer = {"SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1"}
    result = slurm_probe.run("resources.procs_per_node=2", "resources.cpus_per_proc=3", env=outer, path=path)
    assert result.code == 0, result.text
    assert any("--cpus-per-task=3" in line for line in calls.read_text().splitlines())
    assert result.probes[(0, 0)]["env"]["SLURM_CPUS_PER_TASK"] == "3"
    assert result.probes[(0, 1)]["env"]["OMP_NUM_THREADS"] == "3"


@pytest.mark.torch
def test_jobs_that_share_a_node_never_share_a_port(slurm_probe: Probe) -> None:
    """Two jobs of two ranks that meet, and two more that only hold their ports meanwhile."""
    gate = slurm_probe.tmp / "gate"
    size = ("resources.procs_per_node=2", "resources.cpus_per_proc=1", "scheduler.nodelist=node01")
    with slurm_probe.started("mode=gloo,none", "note=1,2", f"gate={gate}", *size) as launcher:
        assert await_true(lambda: len(slurm_probe.saw()) == 8 or launcher.poll() is not None)
        gate.touch()
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, out
    saw = slurm_probe.saw()
    ports = [{saw[n, r]["env"]["MASTER_PORT"] for r in (0, 1)} for n in range(4)]
    assert all(len(p) == 1 for p in ports) and len(set.union(*ports)) == 4
    assert {saw[n, r]["sum"] for n in (0, 1) for r in (0, 1)} == {3.0}


@pytest.mark.parametrize(
    "body",
    [
        'id=$(/usr/bin/sbatch "$@"); echo "Welcome to Cluster3 - 2 jobs left"; echo "maintenance 404"; echo "$id"',
        'echo "banner on stderr 17" >&2; exec /usr/bin/sbatch "$@"',
        'echo "$(/usr/bin/sbatch "$@");clusterA"',
        'echo "Submitted batch job $(/usr/bin/sbatch "$@") on cluster A"',
    ],
    ids=["banner", "stderr", "cluster", "words"],
)
def test_the_job_id_is_found_whatever_sbatch_prints(slurm_probe: Probe, tmp_path: Path, body: str) -> None:
    result = slurm_probe.run("ret=number", path=shim(tmp_path, "sbatch", body))
    assert result.code == 0, result.text
    assert result.outcome(0)["result"] == 41.5
    assert result.probes[(0, 0)]["env"]["SLURM_JOB_ID"] in (result.sweep / ".hpc_hydra/manifest.jsonl").read_text()
    if "stderr 17" in body:
        assert result.text.count("banner on stderr 17") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 0", "no job id"),
        ('echo "sbatch: error: invalid account 404" >&2; exit 1', "invalid account 404"),
    ],
)
def test_a_failed_submission_is_told_at_once(slurm_probe: Probe, tmp_path: Path, body: str, said: str) -> None:
    result = slurm_probe.run("note=1,2", path=shim(tmp_path, "sbatch", body), timeout=200)
    assert result.code == 2 and said in result.err and "Traceback" not in result.err
    assert not result.probes


def test_memory_reaches_slurm_in_its_own_units(local_probe: Probe) -> None:
    """One job each, as the memory differs; where none is asked for, there is no line."""
    asked = "resources.mem_per_node=0.5G,null,1.5GB,2500MB,1GiB,'0'"
    result = local_probe.run("scheduler=slurm", asked, "launch.dry_run=script")
    assert result.code == 0, result.text
    found = re.findall(r"^#SBATCH --mem=(\S+)", result.out, re.M)
    assert [told.replace("1024M", "1G") for told in found] == ["512M", "1536M", "2500M", "1G", "0"]
    assert len(re.findall(r"^#SBATCH --nodes=", result.out, re.M)) == 6


def test_memory_without_a_unit_is_refused(local_probe: Probe) -> None:
    result = local_probe.run("scheduler=slurm", "resources.mem_per_node=1024")
    assert result.code == 2 and "resources.mem_per_node" in result.err and "Try:" in result.err
    assert not result.probes and not result.sweep.exists()


def test_what_slurm_refuses_is_shown(slurm_probe: Probe) -> None:
    result = slurm_probe.run("scheduler.nodelist=nosuchnode", "note=1,2")
    assert result.code == 2 and "nvalid node name" in result.err and "Traceback" not in result.err


def test_more_memory_than_a_node_has_is_refused_before_submission(slurm_probe: Probe) -> None:
    result = slurm_probe.run("resources.mem_per_node=1T", "note=1,2")
    assert result.code == 2 and "resources.mem_per_node" in result.err and "32000M" in result.err


TIMES = {
    "30": "30:00", "'4:00'": "4:00", "'1:30:00'": "1:30:00", "2-12": "2-12:00:00", "1-06": "1-06:00:00",
    "1-00:00:00": "1-00:00:00", "2h": "2:00:00", "90s": "2:00", "'0:30'": "1:00",
}  # fmt: skip


def seconds(text: str) -> int:
    days, _, rest = text.rpartition("-")
    fields = [int(f) for f in rest.split(":")]
    if days:
        fields += [0] * (3 - len(fields))
    elif len(fields) == 1:
        fields = [0, *fields, 0]
    while len(fields) < 3:
        fields.insert(0, 0)
    return int(days or 0) * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2]


def test_time_limits_mean_what_slurm_says(local_probe: Probe) -> None:
    """One job each, as the limits differ."""
    result = local_probe.run("scheduler=slurm", f"resources.time_limit={','.join(TIMES)}", "launch.dry_run=script")
    assert result.code == 0, result.text
    found = re.findall(r"^#SBATCH --time=(\S+)", result.out, re.M)
    for told, meant in zip(found, TIMES.values(), strict=True):
        assert 0 <= seconds(told) - seconds(meant) < 60


def test_an_impossible_time_limit_is_refused(local_probe: Probe) -> None:
    result = local_probe.run("scheduler=slurm", "resources.time_limit=0", "launch.dry_run=true")
    assert result.code == 2 and "resources.time_limit" in result.err and "Try:" in result.err


def test_an_unquoted_time_in_yaml_is_caught_where_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [hpc, _self_]\nresources:\n  time_limit: 1:30:00\n")
    (tmp_path / "app.py").write_text(
        "import hydra\n@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg): ...\nmain()\n"
    )
    argv = [sys.executable, "app.py", "-m", "scheduler=slurm", "launch.dry_run=true"]
    done = forking.run(argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=200)
    assert done.returncode == 2
    assert "config.yaml" in done.stderr and '"1:30:00"' in done.stderr and "line 3" in done.stderr
