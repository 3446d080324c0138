"""Packed runs on LSF and over ssh: what their scripts say, and by which ids they are known."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from hpc_hydra.planning import packing
from hpc_hydra.planning.types import EnvVar, Logging, Plan
from hpc_hydra.schedulers import capability_defaults
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.capabilities import Packing
from hpc_hydra.schedulers.job_script import interactive_script
from hpc_hydra.schedulers.local_base import ids_of
from hpc_hydra.schedulers.lsf.adapter import Lsf
from hpc_hydra.schedulers.lsf.ranks import rank_info
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.schedulers.ssh.adapter import Ssh
from tests.unit.schedulers.specs import request, spec

LSF, SSH = Lsf(), Ssh()
SIZE = {"procs_per_node": 2, "cpus_per_proc": 3, "gpus_per_proc": 1}


def lsf(flavour: str = "standard", **fields: object) -> JobSpec:
    return spec(request(scheduler="lsf", flavour=flavour, **{**SIZE, **fields}), runs=(0, 1, 2))


def ssh(**fields: object) -> JobSpec:
    return spec(request(scheduler="ssh", hosts=("me@a", "b"), **{**SIZE, **fields}), runs=(4, 5, 6))


@pytest.mark.parametrize(
    ("made", "adapter", "words"),
    [
        (lsf("csm", nodes=2), LSF, ["guard -- jsrun --nrs=2", "--tasks_per_rs=2 --cpu_per_rs=6 --gpu_per_rs=2"]),
        (lsf("csm", cpus_per_proc=None), LSF, ["--cpu_per_rs=2 ", "--bind=packed:1"]),
        (lsf(nodes=2), LSF, ["blaunch --nodes 2 --procs 2", '"--hosts=${2-}" "--slices=${4-}" --']),
        (lsf(exclusive=True), LSF, ["blaunch --nodes 1", " --whole "]),
        (ssh(setup_lines=("module load x",)), SSH, ["ssh --procs 2", "'--setup=module load x'", '"--slices=${4-}" --']),
    ],
)
def test_a_step_requests_the_resources_of_its_run(made: JobSpec, adapter: Lsf | Ssh, words: list[str]) -> None:
    text = adapter.step_script(made)
    flat = " ".join(text.replace("\\\n", " ").split())
    assert all(word.strip() in flat for word in words), flat
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert f"HPC_HYDRA_SCHEDULER={adapter.name}" in text and "/venv/bin/python -m hpc_hydra.node rank" in text


@pytest.mark.parametrize("scheduler", ["slurm", "flux", "lsf", "ssh"])
def test_a_trace_is_of_all_scripts_from_their_first_command(scheduler: str) -> None:
    made = spec(request(scheduler=scheduler, hosts=("a", "b")), runs=(0, 1), env=(EnvVar("A_TOKEN", "x"),))
    made = replace(made, plan=replace(made.plan, logging=Logging(trace=True)))
    adapter = adapter_for(scheduler)
    assert isinstance(adapter, Packing)
    packed = replace(made, packs=(2,))
    for text in (adapter.script(made), adapter.script(packed), adapter.step_script(made), interactive_script(made)):
        commands = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert commands[:2] == ["PS4='+ line $LINENO: '", "set -x"], text


@pytest.mark.parametrize("flavour", ["standard", "csm"])
def test_allocations_of_lsf_are_elements_of_one_array(flavour: str) -> None:
    made = replace(lsf(flavour, nodes=2), packs=(2, 1))
    text = LSF.script(made)
    assert '#BSUB -J "train[1-2]"' in text or "[1-2]" in text.split("-J", 1)[1].splitlines()[0]
    assert ".%J.%I.lsf" in text and '"$((${hpc_hydra_index:-1} - 1))"' in text
    ids = made.ids_of_runs(LSF.parse_job_ids("Job <12> is submitted to default queue <normal>.", made))
    assert ids == ("12[1]+0", "12[1]+1", "12[2]+2")
    hosts = {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "batch1 1 a 8 b 8", "HPC_HYDRA_LSF_FLAVOUR": flavour}
    assert LSF.hosts(hosts) == (("batch1", "a", "b") if flavour == "standard" else ())  # jsrun places them


def test_options_of_jsrun_stay_with_the_steps() -> None:
    both = (("alloc_flags", "gpumps"), ("smpiargs", "off"))
    asked = request(scheduler="lsf", flavour="csm", submit_args=both, launch_args=both, **SIZE)
    plan = Plan("test", asked, pack=2, cores_on_node=8, gpus_on_node=4)
    outer = packing.allocation([plan], by_launch_args=LSF.packs_by_launch_args).request
    LSF.check(outer)
    assert "smpiargs" not in dict(LSF.directives(outer)) and dict(LSF.directives(outer))["alloc_flags"] == "gpumps"
    step = LSF.step_script(spec(asked))
    assert "--smpiargs=off" in step and "alloc_flags" not in step


def test_a_part_of_a_csm_job_does_not_know_its_hosts() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    env = {f"JSM_NAMESPACE_{name}": value for name, value in zip(names, "0101", strict=True)}
    env |= {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "batch1 1 a 8 b 8"}
    alone, part = rank_info(env), rank_info({**env, "HPC_HYDRA_LSF_STEP": "1"})
    assert alone is not None and alone.master_host == "a"
    assert part is not None and (part.hosts, part.master_host) == ((), "")


def test_a_pack_over_ssh_is_known_by_its_first_run_and_waits_for_what_it_starts() -> None:
    made = replace(ssh(setup_lines=("module load x",)), packs=(2, 1))
    assert ids_of(made) == ("job0.4+4", "job0.4+5", "job0.6+6")
    assert ids_of(ssh()) == ("job0.4", "job0.5", "job0.6")
    assert [argv[2] for _, argv in capability_defaults.submissions(SSH, made.sweep / "job0.sh", made)] == ["4", "6"]
    text = SSH.script(made)
    assert "module load" not in text  # each run has its own hosts to set up
    assert 'HPC_HYDRA_PACK="run ${1:-4}"' in text and "exec " not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert SSH.hosts({"HPC_HYDRA_SSH_HOSTS": "me@a,b"}) == ("me@a", "b")


def test_other_options_of_ssh_are_other_allocations() -> None:
    plans = [Plan("t", ssh(launch_args=(("F", file),)).plan.request, pack=2) for file in ("one", "two")]
    by_launch_args = SSH.packs_by_launch_args
    first, second = (packing.together(plan, by_launch_args=by_launch_args) for plan in plans)
    assert first != second
    assert packing.allocation(plans[:1], by_launch_args=by_launch_args).request.launch_args == (("F", "one"),)
