"""What is asked is what Flux is told, or it is refused by name; what Flux says is understood."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.errors import PlanError, RendezvousError, SchedulerError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks, capability_defaults
from hpc_hydra.schedulers.base import JobEndState, State
from hpc_hydra.schedulers.flux.adapter import Flux
from hpc_hydra.schedulers.flux.options import directive, time_limit
from tests.fakes.scheduler_state import Cluster
from tests.unit.schedulers.specs import request, spec

sys.path.append(str(Path(__file__).parents[2] / "fakes"))

import flux_options as real  # the stand-in reads directives and options as Flux does

FLUX = Flux()


def asked_for(**fields: Any) -> Request:
    return request(scheduler="flux", **fields)


def submitted(asked: Request) -> real.Asked:
    found = real.Asked("batch")
    for _, words in real.directives(FLUX.script(spec(asked)), "job0.sh"):
        found = real.parse("batch", words, found)
    real.check(found)
    return found


def launched(asked: Request) -> real.Asked:
    program, command, *words = FLUX.launch_command(asked)
    assert (program, command) == ("flux", "run")
    found = real.parse("run", words)
    real.check(real.Asked("run", found.options, ["true"]))
    return found


OTHER_VALUES: dict[str, Any] = {
    "nodes": 3, "procs_per_node": 2, "gpus_per_proc": 2, "shared_gpus": 3, "cpus_per_proc": 5, "time_limit": 600,
    "exclusive": True, "job_name": "other", "dependency": "afterok:f12", "gpu_request": "gpus-per-task",
    "gpu_bind": "per-task", "cpu_bind": "off", "setup_lines": ("echo hi",), "submit_args": (("urgency", "20"),),
    "launch_args": (("label-io", None),), "removed_args": ("output",), "max_requeues": 2, "spare_nodes": 1,
}  # fmt: skip
REFUSED = {
    **{name: f"scheduler.{name}" for name in FLUX.options.lacks},
    "mem_per_node": "resources.mem_per_node", "survives_node_loss": "rendezvous.name", "gpu_type": "system.gpu_type",
    "steps_survive_node_loss": "rendezvous.min_nodes",
}  # fmt: skip
FIELDS = [
    f.name
    for f in dataclasses.fields(Request)
    if f.name not in ("scheduler", "hosts", "array_parallelism", "mem_per_node")
    and f.name != "allocation"  # planning asks it of SLURM alone
]


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_request_is_dropped(field: str) -> None:
    base = asked_for(gpus_per_proc=1)
    asked = dataclasses.replace(base, **{field: OTHER_VALUES.get(field, f"some-{field}")})
    if field in REFUSED:
        with pytest.raises(PlanError, match=REFUSED[field]):
            capability_checks.check(FLUX, asked)
        return
    capability_checks.check(FLUX, asked)
    here, there = spec(asked), spec(base)
    said = (FLUX.script(here), FLUX.submit_command(Path("/s"), here))
    assert said != (FLUX.script(there), FLUX.submit_command(Path("/s"), there))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"array_parallelism": 2}, "scheduler.array_parallelism"),
        ({"mem_per_node": 100}, "resources.mem_per_node"),
        ({"time_limit": 0}, "resources.time_limit"),
        ({"gpu_request": "gres"}, "system.gpu_request"),
        ({"gpu_bind": "closest"}, "system.gpu_bind"),
        ({"cpu_bind": "cores"}, "system.cpu_bind"),
        ({"dependency": "singleton"}, "scheduler.dependency"),
        ({"dependency": "aftercorr:f12"}, "scheduler.dependency"),
        ({"dependency": "afterok:f12?afterok:f13"}, "scheduler.dependency"),
        ({"dependency": "afterok"}, "scheduler.dependency"),
        ({"dependency": "afterok:12_3"}, "scheduler.dependency"),
        ({"queue": "a\nb"}, "scheduler.queue"),
        ({"comment": "a\nb"}, "scheduler.comment"),
        ({"submit_args": (("cc", "0-3"),)}, "scheduler.extra.cc"),
        ({"submit_args": (("gpus-per-node", "4"),)}, "scheduler.extra.gpus-per-node"),
        ({"submit_args": (("no such", "4"),)}, "scheduler.extra.no such"),
        ({"launch_args": (("broker-opts", "-v"),)}, "scheduler.launch_extra.broker-opts"),
        ({"submit_args": (("taskmap", "cyclic"),)}, "scheduler.submit_extra.taskmap"),
    ],
)
def test_what_flux_does_not_support_is_refused_by_key(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(PlanError) as error:
        capability_checks.check(FLUX, asked_for(**fields))
    assert error.value.where == key
    assert fields.keys() & {"queue", "comment"} or error.value.fix


def test_an_option_for_both_goes_to_the_command_that_knows_it() -> None:
    both = (("broker-opts", "-v"), ("taskmap", "cyclic"), ("setopt", "mpibind=off"))
    asked = asked_for(submit_args=both, launch_args=both)
    capability_checks.check(FLUX, asked)
    assert "taskmap" not in submitted(asked).options
    assert "broker-opts" not in launched(asked).options
    assert "mpibind=off" in submitted(asked).list("setopt")
    assert "mpibind=off" in launched(asked).list("setopt")


@pytest.mark.parametrize(("seconds", "text"), [(1, "1s"), (1800, "1800s"), (5400.2, "5401s")])
def test_a_time_limit_is_rounded_up(seconds: float, text: str) -> None:
    assert time_limit(seconds) == text


@pytest.mark.parametrize(
    "value", ["it's", 'say "hi"', "a'''b", 'a"""b', "''", '""', "back\\slash\\", "#x", "{}", "é 東", "a;b|c&d (e)", " "]
)
def test_a_value_of_a_directive_is_read_back(value: str) -> None:
    (found,) = real.directives(f"#!/bin/sh\n#flux: {directive(('job-name', value))}\n", "x")
    assert found[1] == [f"--job-name={value}"]


texts = st.one_of(
    st.none(),
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12).filter(str.isprintable),
)
requests = st.builds(
    Request,
    scheduler=st.just("flux"),
    nodes=st.integers(1, 9999),
    procs_per_node=st.integers(1, 64),
    gpus_per_proc=st.integers(0, 8),
    cpus_per_proc=st.one_of(st.none(), st.integers(1, 256)),
    time_limit=st.one_of(st.none(), st.integers(1, 10**7)),
    exclusive=st.booleans(),
    job_name=texts.map(lambda text: text or "job"),
    queue=texts,
    account=texts,
    dependency=st.sampled_from([None, "afterok:f12", "afterany:ƒ34"]),
    constraint=texts,
    comment=texts,
    mpi=texts.filter(lambda text: text != "none"),
    gpu_request=st.sampled_from([None, "gpus-per-node", "gpus-per-task", "none"]),
    gpu_bind=st.sampled_from([None, "off", "map:0;1"]),
    cpu_bind=st.sampled_from([None, "per-task"]),
)


@given(requests)
def test_a_script_read_back_is_the_request(asked: Request) -> None:
    capability_checks.check(FLUX, asked)
    found, step = submitted(asked), launched(asked)
    gpus = found.number("gpus-per-slot")
    assert (gpus is not None) == (asked.gpus_per_proc > 0 and asked.gpu_request != "none")
    attributes = dict(pair.split("=", 1) for pair in found.list("setattr"))
    assert attributes["user.hpc_hydra"]
    assert step.text("ntasks") == found.text("nslots")
    assert step.number("cores-per-task") == found.number("cores-per-slot")
    assert step.number("gpus-per-task") == gpus
    affinity = step.shell.get("gpu-affinity")
    per_task = asked.gpu_request == "gpus-per-task" and asked.gpu_bind is None
    limit = found.text("time-limit")
    read = dataclasses.replace(
        asked,
        nodes=found.number("nodes") or 0,
        procs_per_node=(found.number("nslots") or 0) // asked.nodes,
        gpus_per_proc=asked.gpus_per_proc if gpus is None else gpus,
        cpus_per_proc=found.number("cores-per-slot"),
        time_limit=int(real.minutes(limit)) if limit else None,
        exclusive="exclusive" in found.options,
        job_name=str(found.text("job-name")),
        queue=found.text("queue"),
        account=attributes.get("system.bank"),
        dependency=next(iter(found.list("dependency")), None),
        constraint=next(iter(found.list("requires")), None),
        comment=json.loads(attributes["user.comment"]) if "user.comment" in attributes else None,
        mpi=step.shell.get("pmi"),
        gpu_bind=None if per_task and affinity == "per-task" else affinity,
        cpu_bind=step.shell.get("cpu-affinity"),
    )
    assert read == asked


def test_runs_are_submitted_together_where_no_text_would_be_filled() -> None:
    runs = (0, 1, 2, 5)
    ((part, argv),) = capability_defaults.submissions(FLUX, Path("/s/job0.sh"), spec(asked_for(), runs=runs))
    assert part.runs == runs
    assert argv[:3] == ["flux", "submit", "--cc=0-2,5"]
    assert argv[-5:] == ["flux", "broker", "bash", "/s/job0.sh", "{cc}"]
    for fields in ({"comment": "{}"}, {"job_name": "{cc}"}, {"submit_args": (("conf", "a=b"),)}):
        assert len(capability_defaults.submissions(FLUX, Path("/s/job0.sh"), spec(asked_for(**fields), runs=runs))) == 4
    assert len(capability_defaults.submissions(FLUX, Path("/s/job0.sh"), spec(asked_for(), runs=(3, 1)))) == 2
    many = capability_defaults.submissions(FLUX, Path("/s/job0.sh"), spec(asked_for(), runs=tuple(range(2500))))
    assert [len(part.runs) for part, _ in many] == [1000, 1000, 500]


TASK = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "2", "FLUX_TASK_LOCAL_ID": "1"}
OUTER = {"SLURM_PROCID": "3", "SLURM_NTASKS": "9", "SLURM_JOB_NODELIST": "x[1-3]", "FLUX_URI": "local:///x"}


def test_the_innermost_job_says_who_a_task_is() -> None:
    info = FLUX.rank_info({**TASK, **OUTER, "FLUX_ENCLOSING_ID": "ƒDsFuVNF", "HPC_HYDRA_FLUX_HOSTS": "b,a"})
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (1, 1, 4, 2)
    assert (info.node_rank, info.num_nodes, info.master_host, info.job_id) == (0, 2, "b", "fDsFuVNF")


def test_the_node_is_what_flux_says_in_any_layout() -> None:
    info = FLUX.rank_info({**TASK, "FLUX_TASK_LOCAL_ID": "0", "HPC_HYDRA_FLUX_NODE": "1"})
    assert info is not None and info.node_rank == 1


@pytest.mark.parametrize(
    "env",
    [
        {},
        {**OUTER, "FLUX_JOB_ID": "f12"},  # a batch script
        {**TASK, "FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "FLUX_JOB_NNODES": "1"},  # flux run -n1 bash
    ],
)
def test_scripts_and_shells_are_no_ranks(env: dict[str, str]) -> None:
    assert FLUX.rank_info(env) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"FLUX_JOB_SIZE": ""}, "FLUX_JOB_SIZE"),
        ({"FLUX_JOB_NNODES": "x"}, "FLUX_JOB_NNODES"),
        ({"FLUX_JOB_SIZE": "5"}, "FLUX_JOB_SIZE"),
        ({"FLUX_TASK_RANK": "4"}, "FLUX_TASK_RANK"),
        ({"FLUX_TASK_LOCAL_ID": "2"}, "FLUX_TASK_LOCAL_ID"),
    ],
)
def test_variables_that_contradict_each_other_are_named(change: dict[str, str], name: str) -> None:
    with pytest.raises(RendezvousError) as error:
        FLUX.rank_info({**TASK, **change})
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("flux-batch: ERROR: [Errno 1] Invalid queue 'x' specified", "permanent"),
        ("[Errno 22] requested duration (2h) exceeds policy limit of 30m for queue debug", "permanent"),
        ("[Errno 22] job submission to batch is disabled: maintenance", "limit"),
        ("[Errno 1] user reached max-active-jobs limit", "limit"),
        ("flux-jobs: ERROR: Unable to connect to Flux: broker socket /run/flux/local was not found", "transient"),
    ],
)
def test_refusals_of_flux_are_classified(said: str, kind: str) -> None:
    assert FLUX.classify(said) == kind


@pytest.mark.parametrize(
    ("job", "state", "native", "code"),
    [
        ({"state": "SCHED"}, State.PENDING, "SCHED", None),
        ({"state": "CLEANUP"}, State.RUNNING, "CLEANUP", None),
        ({"state": "INACTIVE", "result": "COMPLETED", "returncode": 0}, State.COMPLETED, "COMPLETED", 0),
        ({"state": "INACTIVE", "result": "FAILED", "returncode": 3}, State.FAILED, "FAILED", 3),
        ({"state": "INACTIVE", "result": "CANCELED", "returncode": -128}, State.CANCELLED, "CANCELED", None),
        ({"state": "INACTIVE", "result": "TIMEOUT", "returncode": 142}, State.TIMEOUT, "TIMEOUT", 142),
        (
            {"state": "INACTIVE", "result": "FAILED", "returncode": 1, "exception": {
                "occurred": True, "severity": 0, "type": "exec", "note": "node failure on node03 (rank 2)"}},
            State.FAILED, "NODE_FAIL", 1,
        ),
        ({"state": "NEW"}, State.UNKNOWN, "NEW", None),
    ],
)  # fmt: skip
def test_states_of_flux_are_read(job: dict[str, Any], state: State, native: str, code: int | None) -> None:
    out = "Welcome\n" + json.dumps({"jobid": "ƒ12", **job}) + "\nGoodbye\n"
    status = FLUX.parse_status([], out)["f12"]
    assert (status.state, status.native, status.exit_code) == (state, native, code)


def test_an_answer_that_cannot_be_read_is_no_list_without_jobs() -> None:
    with pytest.raises(SchedulerError, match="flux jobs"):
        FLUX.parse_status([], '{"jobs": [{"jobid": "ƒ12", "sta')


def test_the_warning_before_the_end_is_reported() -> None:
    text = FLUX.script(spec(asked_for(time_limit=600, warning="USR2@90")))
    assert "#flux: --signal=SIGUSR2@90s" in text


@pytest.mark.parametrize(
    ("exceptions", "standing"),
    [
        ([], JobEndState(True)),
        ([("x", 3)], JobEndState(True)),
        ([("cancel", 0)], JobEndState(False)),
        ([("timeout", 0)], JobEndState(False, reached_limit=True)),
        ([("y", 2), ("cancel", 0), ("timeout", 0)], JobEndState(False)),
        ([("timeout", 0), ("cancel", 0)], JobEndState(False)),
    ],
)
def test_the_state_of_a_job_is_in_its_eventlog(exceptions: list[tuple[str, int]], standing: JobEndState) -> None:
    events = [{"timestamp": 1.0, "name": "submit", "context": {"urgency": 16}}, {"timestamp": 1.1, "name": "start"}]
    events += [{"name": "exception", "context": {"type": kind, "severity": n, "note": ""}} for kind, n in exceptions]
    assert FLUX.parse_job_end("".join(f"{json.dumps(event)}\n" for event in events)) == standing
    assert FLUX.parse_job_end("") is None


def test_a_further_job_for_a_run_has_a_name_of_its_own_and_counts() -> None:
    asked = spec(asked_for(max_requeues=2), runs=(3, 5))
    lines = FLUX.script(asked).splitlines()
    (name,) = [line for line in lines if line.startswith("export HPC_HYDRA_FLUX_NAME=")]
    env = {"HPC_HYDRA_FLUX_NAME": "train.5.tag", "HPC_HYDRA_FLUX_AGAIN": "1", "FLUX_ENCLOSING_ID": "f9"}
    assert name.endswith(f"$HPC_HYDRA_RUN.{asked.tag}") and 'export HPC_HYDRA_FLUX_AGAIN="${2:-0}"' in lines
    command = ["flux", "batch", "--job-name=train.5.tag.2", "--dependency=afterany:f9", "/s/job0.sh", "5", "2", "f9"]
    assert FLUX.resubmit_command(env, Path("/s/job0.sh"), 5, 2, "f9") == command
    assert FLUX.successor_name(env, 2) == "train.5.tag.2"
    assert FLUX.parse_successor("ƒ9 train.5.tag\nƒA train.5.tag.2\n", "train.5.tag.2") == "fA"
    assert FLUX.restarts(env) == 1 and FLUX.restarts({}) == 0
    assert FLUX.job_end_command(env) is None  # by hand, in no job: nobody can say
    assert FLUX.job_end_command({**env, "HPC_HYDRA_FLUX_PARENT": "local:///x"})[:3] == ["flux", "job", "eventlog"]
    assert FLUX.parse_resubmitted("welcome\nƒABC\n") == "fABC"


def test_a_question_about_certain_jobs_has_no_filters_for_all(fake_flux: Cluster) -> None:
    """Flux would say that it ignores them, and each message of an error would begin with that."""
    for command in (*FLUX.status_commands(["f1"]), FLUX.order_command(["f1", "f2"], spec(runs=(0, 1))) or []):
        asked = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert FLUX.is_unknown_job(asked.stderr) and "WARNING" not in asked.stderr


@pytest.mark.parametrize(
    ("removed", "left"),
    [
        ((), {"exit-on-error", "exit-timeout=none", "gpu-affinity=per-task", "fastload=on", "mpibind=off"}),
        (("fastload",), {"exit-on-error", "exit-timeout=none", "gpu-affinity=per-task", "mpibind=off"}),
        (
            ("absent",),
            {"exit-on-error", "exit-timeout=none", "gpu-affinity=per-task", "fastload=on", "mpibind=off"},
        ),
        (("setopt",), {"exit-on-error", "exit-timeout=none", "fastload=on", "mpibind=off"}),
        (("exit-on-error",), {"exit-timeout=none", "gpu-affinity=per-task", "fastload=on", "mpibind=off"}),
    ],
)
def test_shell_options_are_removed_by_their_own_name(removed: tuple[str, ...], left: set[str]) -> None:
    given = (("setopt", "fastload=on"), ("o", "mpibind=off"))
    words = Flux().launch_command(Request("flux", 1, 1, gpu_bind="per-task", launch_args=given, removed_args=removed))
    assert {word.removeprefix("--setopt=") for word in words if word.startswith("--setopt=")} == left
