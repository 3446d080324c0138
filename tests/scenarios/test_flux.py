"""Sweeps and attached runs over Flux; on the stand-in."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.awaiting import await_true
from tests.fakes.scheduler_state import Cluster
from tests.scenarios.conftest import LIGHT, ROOT, Probe
from tests.scenarios.test_coming_back import hpc, states
from tests.unit.cli.running import SHOW, hpc_hydra, lines

PATIENCE = 240.0  # seconds
SMALL = ("resources.cpus_per_proc=1", "resources.gpus_per_proc=0")


@pytest.fixture
def flux(request: pytest.FixtureRequest) -> Cluster | None:
    """The stand-in; None with `--scheduler=flux`, on the real one."""
    return None if request.config.getoption("--scheduler") == "flux" else request.getfixturevalue("fake_flux")


def test_a_sweep_with_results_values_and_a_rank_that_fails(fake_flux: Cluster, tmp_path: Path) -> None:
    """Its ranks meet, on two nodes."""
    note = 'it\'s "so" $(touch pwned) {{id}} {cc}'
    done = Probe(tmp_path, "flux").run(
        *SMALL, "resources.nodes=2", "mode=gloo", "exit_code=0,7", "how=exit", "fail_rank=1", "sleep=1", "ret=number",
        f"launch.env.NOTE={json.dumps(note)}", "launch.seed=3", env=LIGHT,
    )  # fmt: skip
    assert done.code == 1, done.text
    assert len([argv for argv in fake_flux.calls("flux submit") if argv[0] == "flux submit"]) == 1
    good, bad = done.outcome(0), done.outcome(1)
    assert (good["status"], good["result"]) == ("completed", 41.5)
    assert (bad["status"], bad["exit_code"], bad["rank"]) == ("failed", 7, 1)
    assert {saw["sum"] for saw in done.probes.values()} == {3.0}
    assert {key: saw["env"]["NOTE"] for key, saw in done.probes.items()} == dict.fromkeys(done.probes, note)
    assert [saw["env"]["RANK"] for key, saw in sorted(done.probes.items()) if key[0] == 0] == ["0", "1"]
    assert [job.left for job in fake_flux.jobs()] == [[], []]
    assert [job.code for job in fake_flux.jobs()] == [0, 7]


def test_each_run_goes_to_its_own_scheduler(fake_flux: Cluster, fake_lsf: Cluster, tmp_path: Path) -> None:
    done = Probe(tmp_path, "flux,lsf,local").run(*SMALL, "resources.procs_per_node=1", "ret=number")
    assert done.code == 0, done.text
    assert (len(fake_flux.jobs()), len(fake_lsf.jobs())) == (1, 1)
    assert [done.outcome(num)["result"] for num in range(3)] == [41.5] * 3


SYSTEM = """\
# @package _global_
defaults:
  - override /scheduler: {scheduler}

system:
  name: {name}
  cores_per_node: 2
  gpus_per_node: 0
  scheduler: {scheduler}
"""


@pytest.mark.cluster
def test_each_system_of_a_sweep_has_its_scheduler(fake_flux: Cluster, slurm_cluster: object, tmp_path: Path) -> None:
    """`-m system=slurm-like,flux-like resources.nodes=1,2`: four jobs, two on each."""
    systems = tmp_path / "conf" / "system"
    systems.mkdir(parents=True)
    for scheduler in ("slurm", "flux"):
        text = SYSTEM.format(name=f"{scheduler}-like", scheduler=scheduler)
        (systems / f"{scheduler}-like.yaml").write_text(text)
    (tmp_path / "conf" / "config.yaml").write_text("defaults:\n  - hpc\n  - _self_\n")
    (tmp_path / "train.py").write_text(
        "import os, hydra\n"
        "@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
        "def main(cfg):\n"
        "    return [cfg.system.name, os.environ['HPC_HYDRA_SCHEDULER'], int(os.environ['WORLD_SIZE'])]\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    args = [
        sys.executable, "train.py", "-m", "system=slurm-like,flux-like", "resources.nodes=1,2",
        "resources.procs_per_node=1", "hydra.sweep.dir=sweep", "launch.seed=1",
    ]  # fmt: skip
    done = forking.run(args, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [json.loads((tmp_path / "sweep" / str(num) / "outcome.json").read_text()) for num in range(4)]
    assert [outcome["result"] for outcome in outcomes] == [
        ["slurm-like", "slurm", 1], ["slurm-like", "slurm", 2], ["flux-like", "flux", 1], ["flux-like", "flux", 2],
    ]  # fmt: skip
    assert len(fake_flux.jobs()) == 2


def test_an_interrupt_cancels_all_by_one_command(fake_flux: Cluster, tmp_path: Path) -> None:
    probe = Probe(tmp_path, "flux")
    fake_flux.set_note("hosts", {"node01": {"slots": 2, "gpus": 0}})
    probe.interrupt(
        *SMALL, "resources.procs_per_node=1", "launch.on_interrupt=cancel", "sleep=600", "note=a,b,c,d", running=2
    )
    jobs = fake_flux.jobs()
    assert {job.state for job in jobs} == {"ended"}
    assert [job.started is None for job in jobs] == [False, False, True, True]
    assert [argv[1:] for argv in fake_flux.calls("flux cancel")] == [[job.id for job in jobs]]


def test_the_time_limit_and_a_cancellation_are_told_as_such(flux: Cluster | None, tmp_path: Path) -> None:
    """By the job's own script, whether a rank was up or not, and by who looks later."""
    probe = Probe(tmp_path, "flux")
    if flux is not None:
        flux.set_note("minute", 10.0)
    args = ("resources.procs_per_node=1", "sleep=600", "launch.bg=true", *SMALL)
    lines = f"scheduler.setup_lines=['touch {tmp_path}/set-up; sleep 600']"
    assert probe.run(*args, f"resources.time_limit={'1m' if flux else '10s'}").code == 0
    other = Probe(tmp_path / "other", "flux")
    other.tmp.mkdir()
    assert other.run(*args, lines).code == 0
    assert await_true((tmp_path / "set-up").exists)
    hpc(other, "cancel")
    assert await_true(lambda: states(other) == ["cancelled"])
    assert await_true(lambda: states(probe) == ["timeout"])
    for one, status in ((probe, "timeout"), (other, "cancelled")):
        if (file := one.sweep / "0" / "outcome.json").exists():  # the script had the time to write it
            assert json.loads(file.read_text())["status"] == status


def test_from_inside_an_allocation_one_may_submit_to_the_instance_around_it(
    flux: Cluster | None, tmp_path: Path
) -> None:
    probe = Probe(tmp_path, "flux")
    command = shlex.join(probe.argv("resources.procs_per_node=1", "ret=number", "launch.inside=submit", *SMALL))
    (tmp_path / "inner.sh").write_text(
        f"#!/bin/bash\n#flux: -N1 -n1\n{command} 2>refused && exit 1\n"
        f"FLUX_URI=$(flux getattr parent-uri) FLUX_ENCLOSING_ID= {command}\n"
    )
    done = subprocess.run(["flux", "batch", "inner.sh"], cwd=tmp_path, env=probe.env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert await_true((probe.sweep / "0" / "outcome.json").exists)
    assert "FLUX_URI=$(flux getattr parent-uri) FLUX_ENCLOSING_ID=" in (tmp_path / "refused").read_text()
    outcome = json.loads((probe.sweep / "0" / "outcome.json").read_text())
    assert (outcome["status"], outcome["job_id"] != done.stdout.strip()) == ("completed", True)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SHOW)
    return tmp_path


def test_a_run_that_is_waited_for_runs_attached(here: Path, fake_flux: Cluster) -> None:
    words = ("run", "scheduler=flux", *SMALL)
    done = hpc_hydra(
        *words, "resources.nodes=2", "resources.procs_per_node=1", "--", "train.py", "a b", "it's", cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "out") == [f"out {rank}/2 ['a b', \"it's\"]" for rank in (0, 1)]
    assert lines(done.stderr, "err") == ["err 0", "err 1"]
    assert fake_flux.jobs()[0].left == []
    done = hpc_hydra(*words, "resources.procs_per_node=1", "--", "train.py", cwd=here, env={"CODE": "7"})
    assert done.returncode == 7, done.stderr


def test_a_batch_script_of_the_users_own(fake_flux: Cluster, tmp_path: Path) -> None:
    (tmp_path / "own.sh").write_text(
        '#!/bin/bash\n#flux: --job-name=mine\n#flux: -N 3\necho "in $FLUX_ENCLOSING_ID $*"; exit 3\n'
    )
    words = ("run", "scheduler=flux", "launch.batch_script=own.sh")
    for more, nodes in (((), 3), (("resources.nodes=2",), 2)):
        done = hpc_hydra(*words, *more, "--", "an", "argument", cwd=tmp_path)
        job = fake_flux.jobs()[-1]
        assert (done.returncode, job.nodes, job.data["name"]) == (3, nodes, "mine"), done.stdout + done.stderr
        assert done.stdout == f"in {job.id} an argument\n"
