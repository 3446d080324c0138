"""What is asked is what sbatch and srun are told, or it is refused by name."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.slurm.adapter import Slurm
from hpc_hydra.schedulers.slurm.options import time_limit
from tests.unit.schedulers.specs import request, spec

SLURM = Slurm()
GPU_OPTIONS = {"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"}


def options(words: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        assert word.startswith("--") and name not in found, f"{word} stands twice"
        found[name] = value if equals else None
    return found


def submitted(asked: Request, runs: int = 1) -> dict[str, str | None]:
    script = SLURM.script(spec(asked, runs=tuple(range(runs))))
    return options(
        [shlex.split(line.removeprefix("#SBATCH "))[0] for line in script.splitlines() if line.startswith("#SBATCH")]
    )


def launched(asked: Request) -> dict[str, str | None]:
    program, *words = SLURM.launch_command(asked)
    assert program == "srun"
    return options(words)


OTHER_VALUES: dict[str, Any] = {
    "nodes": 3,
    "procs_per_node": 2,
    "gpus_per_proc": 2,
    "shared_gpus": 3,
    "cpus_per_proc": 5,
    "mem_per_node": 2500,
    "time_limit": 600,
    "exclusive": True,
    "job_name": "other",
    "array_parallelism": 2,
    "gpu_request": "gres",
    "setup_lines": ("echo hi",),
    "submit_args": (("licenses", "a:1"),),
    "launch_args": (("label", None),),
    "removed_args": ("open-mode",),
    "allocation": (9, 14),
    "spare_nodes": 1,
}


FIELDS = [f.name for f in dataclasses.fields(Request) if f.name not in ("scheduler", "hosts", *SLURM.options.lacks)]


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_request_is_dropped(field: str) -> None:
    base = request(gpus_per_proc=1)
    asked = dataclasses.replace(base, **{field: OTHER_VALUES.get(field, f"some-{field}")})
    SLURM.check(asked)
    assert SLURM.script(spec(asked, runs=(0, 1))) != SLURM.script(spec(base, runs=(0, 1)))


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("queue", "partition"), ("account", "account"), ("qos", "qos"), ("reservation", "reservation"),
        ("dependency", "dependency"), ("constraint", "constraint"), ("nodelist", "nodelist"), ("exclude", "exclude"),
        ("mail_type", "mail-type"), ("mail_user", "mail-user"), ("comment", "comment"), ("job_name", "job-name"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["x", "a b", 'say "hi" it\'s', "back\\slash", "$HOME #x %j", "é", ""])
def test_a_text_is_passed_as_it_is(field: str, option: str, value: str) -> None:
    assert submitted(request(**{field: value}))[option] == value


@pytest.mark.parametrize("field", ["queue", "job_name", "comment", "mpi", "gpu_bind"])
def test_a_line_break_in_an_option_is_refused_by_name(field: str) -> None:
    with pytest.raises(PlanError, match=f"{field}: .*line break"):
        SLURM.check(request(**{field: "a\n#SBATCH --nodes=9"}))


@pytest.mark.parametrize(
    ("spelling", "sbatch", "srun"),
    [
        (None, {"gpus-per-node": "4"}, {}),
        ("gpus-per-node", {"gpus-per-node": "4"}, {}),
        ("gpus-per-task", {"gpus-per-task": "2"}, {"gpus-per-task": "2"}),
        ("gres", {"gres": "gpu:4"}, {}),
        ("none", {}, {}),
    ],
)
def test_gpus_have_one_spelling(spelling: str | None, sbatch: dict[str, str], srun: dict[str, str]) -> None:
    asked = request(procs_per_node=2, gpus_per_proc=2, gpu_request=spelling)
    assert {k: v for k, v in submitted(asked).items() if k in GPU_OPTIONS} == sbatch
    assert {k: v for k, v in launched(asked).items() if k in GPU_OPTIONS} == srun


@pytest.mark.parametrize(
    ("spelling", "want"),
    [("gpus-per-node", "h100:4"), ("gpus-per-task", "h100:2"), ("gres", "gpu:h100:4")],
)
def test_gpus_of_a_type_have_one_spelling(spelling: str, want: str) -> None:
    asked = request(procs_per_node=2, gpus_per_proc=2, gpu_request=spelling, gpu_type="h100")
    assert {k: v for k, v in submitted(asked).items() if k in GPU_OPTIONS} == {spelling: want}


def test_shared_gpus_are_those_of_the_node() -> None:
    asked = request(procs_per_node=8, gpus_per_proc=1, shared_gpus=4)
    assert submitted(asked)["gpus-per-node"] == "4"
    with pytest.raises(PlanError, match="share"):
        SLURM.check(dataclasses.replace(asked, gpu_request="gpus-per-task"))


@pytest.mark.parametrize("extra", [("gpus", "8"), ("G", "8"), ("gres", "gpu:a100:4"), ("gpus_per_task", "1")])
@pytest.mark.parametrize("spelling", ["gpus-per-node", "gpus-per-task", "gres"])
def test_the_users_spelling_of_gpus_replaces_ours(extra: tuple[str, str], spelling: str) -> None:
    asked = request(procs_per_node=4, gpus_per_proc=1, gpu_request=spelling, submit_args=(extra,))
    name = {"G": "gpus", "gpus_per_task": "gpus-per-task"}.get(extra[0], extra[0])
    assert {k: v for k, v in submitted(asked).items() if k in GPU_OPTIONS} == {name: extra[1]}
    assert not launched(asked).keys() & GPU_OPTIONS


def test_a_generic_resource_may_stand_beside_gpus_but_not_replace_them() -> None:
    asked = request(gpus_per_proc=1, submit_args=(("gres", "nvme:1"),))
    found = submitted(asked)
    assert found["gres"] == "nvme:1"
    assert found["gpus-per-node"] == "1"
    with pytest.raises(PlanError, match="gpu:1,nvme:1"):
        SLURM.check(dataclasses.replace(asked, gpu_request="gres"))


def test_cpus_are_stated_on_both_commands() -> None:
    asked = request(cpus_per_proc=4)
    assert submitted(asked)["cpus-per-task"] == launched(asked)["cpus-per-task"] == "4"


def test_the_size_is_stated_on_both_commands() -> None:
    asked = request(nodes=3, procs_per_node=4)
    assert submitted(asked)["ntasks-per-node"] == launched(asked)["ntasks-per-node"] == "4"
    assert submitted(asked)["nodes"] == launched(asked)["nodes"] == "3"
    assert launched(asked)["ntasks"] == "12"


@pytest.mark.parametrize(("mib", "text"), [(0, "0"), (1, "1M"), (512, "512M"), (1536, "1536M")])
def test_memory_is_one_option_in_mebibytes(mib: int, text: str) -> None:
    found = submitted(request(mem_per_node=mib))
    assert {k: v for k, v in found.items() if k.startswith("mem")} == {"mem": text}


@pytest.mark.parametrize("other", ["mem-per-cpu", "mem_per_gpu"])
def test_the_users_spelling_of_memory_replaces_ours(other: str) -> None:
    found = submitted(request(mem_per_node=500, submit_args=((other, "2G"),)))
    assert {k: v for k, v in found.items() if k.startswith("mem")} == {other.replace("_", "-"): "2G"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "00:01:00"), (29, "00:01:00"), (60, "00:01:00"), (61, "00:02:00"), (90, "00:02:00"), (1800, "00:30:00"),
        (5400, "01:30:00"), (86399, "1-00:00:00"), (86400, "1-00:00:00"), (216000, "2-12:00:00"),
        (172801, "2-00:01:00"),
    ],
)  # fmt: skip
def test_a_time_limit_is_rounded_up_to_minutes(seconds: int, text: str) -> None:
    assert time_limit(seconds) == text


@pytest.mark.parametrize("seconds", [0, -5])
def test_no_time_limit_is_unlimited_by_accident(seconds: int) -> None:
    with pytest.raises(PlanError, match=r"resources\.time_limit"):
        SLURM.check(request(time_limit=seconds))


def test_extra_options_override_add_and_remove() -> None:
    asked = request(
        time_limit=600,
        queue="batch",
        submit_args=(("t", "2"), ("mail_user", "me@x"), ("--licenses", "a:1"), ("p", "debug"), ("exclusive", "user")),
        launch_args=(("kill-on-bad-exit", "0"), ("l", None), ("wait", "30")),
        removed_args=("no-requeue", "--export"),
        exclusive=True,
    )
    SLURM.check(asked)
    found = submitted(asked)
    assert (found["time"], found["partition"], found["mail-user"], found["licenses"]) == ("2", "debug", "me@x", "a:1")
    assert found["exclusive"] == "user"
    assert "no-requeue" not in found
    step = launched(asked)
    assert (step["kill-on-bad-exit"], step["label"], step["wait"]) == ("0", None, "30")
    assert "export" not in step


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("wrap", "true"), "wrap"), (("array", "1-9"), "array"), (("a", "1-9"), "array"), (("W", None), "wait"),
        (("test_only", None), "test-only"), (("n", "9"), "resources.nodes"),
        (("x\n", "1\n#SBATCH -N9"), "x"), (("no such", "1"), "no such"), (("comment", "a\nb"), "comment"),
    ],
)  # fmt: skip
def test_an_option_that_would_change_the_job_is_refused_by_name(args: tuple[str, str | None], name: str) -> None:
    with pytest.raises(PlanError, match=re.escape(name)):
        SLURM.check(request(submit_args=(args,)))


def test_the_ranks_get_the_scripts_environment_whatever_the_job_inherits() -> None:
    asked = request(submit_args=(("export", "NONE"),), launch_args=(("export", "NONE"),))
    SLURM.check(asked)
    assert submitted(asked)["export"] == "NONE"
    assert launched(asked)["export"] == "ALL"
    assert launched(request(launch_args=(("export", "ALL,A=1"),)))["export"] == "ALL,A=1"
    with pytest.raises(PlanError, match=r"launch_extra\.export"):
        SLURM.check(request(launch_args=(("export", "NONE"),)))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_throttle_below_one_is_refused(limit: int) -> None:
    with pytest.raises(PlanError, match="array_parallelism"):
        SLURM.check(request(array_parallelism=limit))


def test_an_unknown_way_to_ask_for_gpus_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"gpus-per-node \| gpus-per-task \| gres \| none"):
        SLURM.check(request(gpus_per_proc=1, gpu_request="tres"))


def test_a_log_directory_that_sbatch_cannot_name_is_refused() -> None:
    with pytest.raises(PlanError, match="backslash"):
        SLURM.script(spec(root=Path("/a\\b")))


texts = st.one_of(
    st.none(),
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12).filter(str.isprintable),
)
requests = st.builds(
    Request,
    scheduler=st.just("slurm"),
    nodes=st.integers(1, 9999),
    procs_per_node=st.integers(1, 64),
    gpus_per_proc=st.integers(0, 8),
    cpus_per_proc=st.one_of(st.none(), st.integers(1, 256)),
    mem_per_node=st.one_of(st.none(), st.integers(0, 10**7)),
    time_limit=st.one_of(st.none(), st.integers(1, 10**7)),
    exclusive=st.booleans(),
    job_name=texts.map(lambda text: text or "job"),
    queue=texts,
    account=texts,
    qos=texts,
    reservation=texts,
    dependency=texts,
    constraint=texts,
    nodelist=texts,
    exclude=texts,
    mail_type=texts,
    mail_user=texts,
    comment=texts,
    array_parallelism=st.one_of(st.none(), st.integers(1, 100)),
    mpi=texts,
    gpu_request=st.sampled_from([None, "gpus-per-node", "gpus-per-task", "gres", "none"]),
    gpu_bind=texts,
    cpu_bind=texts,
)


@given(requests, st.integers(1, 5))
def test_a_script_read_back_is_the_request(asked: Request, runs: int) -> None:
    SLURM.check(asked)
    found, step = submitted(asked, runs), launched(asked)
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):00", found.get("time") or "")
    minutes = (int(clock[1] or 0) * 24 + int(clock[2])) * 60 + int(clock[3]) if clock else None
    gpus = {
        "gpus-per-node": lambda value: int(value) // asked.procs_per_node,
        "gpus-per-task": int,
        "gres": lambda value: int(value.removeprefix("gpu:")) // asked.procs_per_node,
    }
    spelled = [name for name in found if name in GPU_OPTIONS]
    assert len(spelled) == (asked.gpus_per_proc > 0 and asked.gpu_request != "none")
    array = re.fullmatch(rf"0-{runs - 1}(?:%(\d+))?", found.get("array") or "")
    read = dataclasses.replace(
        asked,
        nodes=int(found["nodes"] or 0),
        procs_per_node=int(found["ntasks-per-node"] or 0),
        gpus_per_proc=gpus[spelled[0]](found[spelled[0]]) if spelled else asked.gpus_per_proc,
        cpus_per_proc=int(found["cpus-per-task"] or 0) if "cpus-per-task" in found else None,
        mem_per_node=int((found["mem"] or "").removesuffix("M")) if "mem" in found else None,
        time_limit=minutes * 60 if minutes else None,
        exclusive="exclusive" in found,
        job_name=str(found["job-name"]),
        array_parallelism=(int(array[1]) if array[1] else None) if array else asked.array_parallelism,
        comment=found["comment"] if asked.comment is not None else None,
        queue=found.get("partition"),
        **{name: found.get(name.replace("_", "-")) for name in (
            "account", "qos", "reservation", "dependency", "constraint", "nodelist", "exclude", "mail_type",
            "mail_user",
        )},
        **{name: step.get(name.replace("_", "-")) for name in ("mpi", "gpu_bind", "cpu_bind")},
    )  # fmt: skip
    rounded = -(-asked.time_limit // 60) * 60 if asked.time_limit is not None else None
    assert read == dataclasses.replace(asked, time_limit=rounded)
    assert step["ntasks"] == str(asked.world_size)
    assert ("array" in found) == (runs > 1)


def test_a_warning_goes_to_the_steps_and_requeues_are_limited() -> None:
    plain = SLURM.script(spec(request()))
    assert "--no-requeue" in plain and "--signal" not in plain
    found = submitted(request(warning="USR1@120", max_requeues=2))
    assert (found["signal"], found["requeue"], "no-requeue" in found) == ("USR1@120", None, False)
    text = SLURM.script(spec(request(max_requeues=2), runs=(0, 1)))
    assert '"${SLURM_RESTART_COUNT:-0}" -lt 2 ] || scontrol update "jobid=${SLURM_ARRAY_JOB_ID' in text


def test_an_element_is_requeued_by_its_array_the_last_one_too() -> None:
    env = {"SLURM_JOB_ID": "70", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"}
    assert SLURM.requeue_command(env) == ["scontrol", "requeue", "70_3"]
    assert SLURM.job_end_command(env) == ["scontrol", "show", "job", "-o", "70_3"]
    assert (SLURM.restarts(env), SLURM.restarts({})) == (2, 0)
    assert SLURM.requeue_command({"SLURM_JOB_ID": "71"}) == ["scontrol", "requeue", "71"]


@pytest.mark.parametrize(
    ("said", "running", "limit", "preempted"),
    [
        ("JobId=7 JobState=RUNNING Reason=None PreemptTime=None", True, False, False),
        ("JobId=7 JobState=RUNNING Reason=None PreemptTime=2026-01-01T00:00:00", True, False, True),
        ("JobId=7 JobState=COMPLETING Reason=TimeLimit PreemptTime=None", False, True, False),
        ("JobId=7 JobState=COMPLETING Reason=None PreemptTime=None", False, False, False),
    ],
)
def test_how_a_job_stands_is_read(said: str, running: bool, limit: bool, preempted: bool) -> None:
    found = SLURM.parse_job_end(said)
    assert found is not None
    assert (found.is_running, found.reached_limit, found.is_preempted) == (running, limit, preempted)
    assert SLURM.parse_job_end("slurm_load_jobs error") is None
