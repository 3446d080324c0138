"""What is asked is what bsub, jsrun and blaunch are told, or it is refused by name."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.lsf.adapter import Lsf
from hpc_hydra.schedulers.lsf.options import dependency, time_limit
from tests.unit.schedulers.specs import request, spec

LSF = Lsf()


def lsf(**fields: Any) -> Request:
    return request(**{"scheduler": "lsf", **fields})


def csm(**fields: Any) -> Request:
    return lsf(flavour="csm", **fields)


def submitted(asked: Request, runs: int = 1) -> dict[str, Any]:
    """Options of the #BSUB lines, as LSF reads them: either kind of quotes, no escapes."""
    found: dict[str, Any] = {}
    for line in LSF.script(spec(asked, runs=tuple(range(runs)))).splitlines():
        if match := re.fullmatch(r"""#BSUB -(\w+)(?: (?:"([^"]*)"|'([^']*)'|(\S+)))?""", line):
            assert match[1] not in found, f"{match[1]} stands twice"
            found[match[1]] = next((value for value in match.groups()[1:] if value is not None), None)
        else:
            assert "#BSUB" not in line
    return found


def sections(requirement: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)\[((?:[^\[\]]|\[[^\]]*\])*)\]", requirement))


def jsrun(asked: Request) -> dict[str, str]:
    words = LSF.launch_command(asked)
    assert words[3:6] == ["guard", "--", "jsrun"]
    return dict(word.removeprefix("--").split("=", 1) for word in words[6:])  # type: ignore[misc]


OTHER: dict[str, Any] = {
    "nodes": 3, "procs_per_node": 2, "gpus_per_proc": 2, "shared_gpus": 3, "cpus_per_proc": 5, "mem_per_node": 2500,
    "time_limit": 600, "exclusive": True, "array_parallelism": 2, "gpu_request": "rusage", "setup_lines": ("echo hi",),
    "submit_args": (("sla", "gold"),), "launch_args": (("no-shell", None),), "removed_args": ("W",),
    "mail_type": "END", "flavour": "csm", "job_name": "other", "spare_nodes": 1,
}  # fmt: skip
# see below; hosts: scheduler=ssh; allocation: SLURM
IGNORED = {"scheduler", "hosts", "survives_node_loss", "steps_survive_node_loss", "allocation"}


@pytest.mark.parametrize("flavour", ["standard", "csm"])
@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Request) if f.name not in IGNORED])
def test_no_field_of_a_request_is_dropped(field: str, flavour: str) -> None:
    base = lsf(nodes=2, gpus_per_proc=1, time_limit=60, flavour=flavour)
    value = OTHER.get(field, f"some-{field}")
    if (field, flavour) == ("launch_args", "csm"):
        value = (("smpiargs", "-gpu"),)
    if (field, flavour) == ("flavour", "csm"):
        value = "standard"
    if (field, flavour) == ("bad_nodes", "csm"):
        return  # `exclusion.leave_out` keeps them out of the request, and says so
    if (field, flavour) in {("exclusive", "csm"), ("gpu_request", "csm")}:
        return  # whole nodes, whose GPUs jsrun deals out: there is nothing to say
    asked = dataclasses.replace(base, **{field: value})
    try:
        capability_checks.check(LSF, asked)
    except PlanError as error:
        assert error.where and error.where.split(".")[-1] == field, error
        return
    assert LSF.script(spec(asked, runs=(0, 1))) != LSF.script(spec(base, runs=(0, 1)))


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("queue", "q"), ("project", "P"), ("user_group", "G"), ("account", "G"), ("reservation", "U"),
        ("dependency", "w"), ("mail_user", "u"), ("job_name", "J"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["x", "a b", 'say "hi"', "it's", "back\\slash", "$HOME #x %j", "é"])
@pytest.mark.parametrize("flavour", ["standard", "csm"])
def test_a_text_is_passed_as_it_is(field: str, option: str, value: str, flavour: str) -> None:
    assert submitted(lsf(flavour=flavour, **{field: value}))[option] == value


@pytest.mark.parametrize("field", ["queue", "project", "job_name", "comment", "constraint", "dependency"])
def test_what_would_end_a_line_or_both_quotes_are_refused_by_name(field: str) -> None:
    for value in ("a\n#BSUB -n 9", 'it\'s "so"'):
        with pytest.raises(PlanError):
            LSF.script(spec(lsf(**{field: value})))


def test_slots_and_hosts() -> None:
    found = submitted(lsf(nodes=3, procs_per_node=4, cpus_per_proc=5, gpus_per_proc=1))
    assert (found["n"], sections(found["R"])) == ("60", {"span": "ptile=20"})
    assert found["gpu"] == "num=4:mode=shared:j_exclusive=yes"
    assert "nnodes" not in found


def test_whole_nodes() -> None:
    asked = csm(nodes=3, procs_per_node=4, cpus_per_proc=5, gpus_per_proc=1)
    found = submitted(asked)
    assert found["nnodes"] == "3"
    assert not found.keys() & {"n", "R", "gpu", "x"}
    assert jsrun(asked) == {
        "nrs": "3", "rs_per_host": "1", "tasks_per_rs": "4", "cpu_per_rs": "20", "gpu_per_rs": "4",
        "bind": "packed:5", "launch_distribution": "packed",
    }  # fmt: skip
    assert jsrun(csm(nodes=2))["cpu_per_rs"] == "ALL_CPUS"
    assert jsrun(csm(nodes=2))["bind"] == "none"


def test_requirements_are_one_string() -> None:
    asked = lsf(
        constraint="ngpus>=4 || bigmem", exclude="node[01-02]", nodelist="node[03-05]", mem_per_node=2500,
        gpus_per_proc=1, gpu_request="rusage", exclusive=True, submit_args=(("R", "order[mem]"),),
    )  # fmt: skip
    script = LSF.script(spec(asked))
    first, second = (line for line in script.splitlines() if line.startswith("#BSUB -R"))
    assert sections(first.split('"')[1]) == {
        "select": "(ngpus>=4 || bigmem) && hname!=node01 && hname!=node02",
        "rusage": "mem=2500MB/host,ngpus_physical=1/host",
        "span": "ptile=1",
    }
    assert "order[mem]" in second
    assert '#BSUB -m "node03 node04 node05"' in script
    assert "#BSUB -x" in script and "#BSUB -gpu" not in script


@pytest.mark.parametrize(
    ("seconds", "text"), [(1, "0:01"), (60, "0:01"), (61, "0:02"), (3600, "1:00"), (5430, "1:31"), (360000, "100:00")]
)
def test_a_time_limit_is_hours_and_minutes_rounded_up(seconds: int, text: str) -> None:
    assert time_limit(seconds) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("afterok:12", "done(12)"), ("afterok:12:13[2]", "done(12) && done(13[2])"),
        ("afterany:1,afternotok:2,after:3", "ended(1) && exit(2) && started(3)"),
        ("done(12) && ended(13)", "done(12) && ended(13)"), ("12", "12"),
    ],
)  # fmt: skip
def test_dependencies(given: str, text: str) -> None:
    assert dependency(given) == text


@pytest.mark.parametrize("given", ["afterok", "singleton", "aftercorr:3", "afterok:12_3", "afterok:12?afterok:13"])
def test_a_dependency_that_lsf_does_not_know_is_refused(given: str) -> None:
    with pytest.raises(PlanError, match=r"scheduler\.dependency"):
        dependency(given)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"qos": "high"}, "scheduler.qos"),
        ({"mpi": "pmix"}, "scheduler.mpi"),
        ({"gpu_bind": "closest"}, "system.gpu_bind"),
        ({"cpu_bind": "cores"}, "system.cpu_bind"),
        ({"mem_per_node": 0}, "resources.mem_per_node"),
        ({"time_limit": 0}, "resources.time_limit"),
        ({"mail_type": "FAIL"}, "scheduler.mail_type"),
        ({"mail_type": "END,TIME_LIMIT"}, "scheduler.mail_type"),
        ({"array_parallelism": 0}, "scheduler.array_parallelism"),
        ({"job_name": "a[1]"}, "scheduler.job_name"),
        ({"flavour": "summit"}, "scheduler.flavour"),
        ({"survives_node_loss": True}, "rendezvous.name"),
        ({"steps_survive_node_loss": True}, "rendezvous.min_nodes"),
        ({"account": "a", "user_group": "b"}, "scheduler.user_group"),
        ({"nodelist": "node[1"}, "scheduler.nodelist"),
        ({"exclude": "a;b"}, "scheduler.exclude"),
        ({"gpus_per_proc": 1, "gpu_request": "gres"}, "system.gpu_request"),
        ({"submit_args": (("n", "4"),)}, "submit_extra.n"),
        ({"submit_args": (("R", "span[hosts=1]"),)}, "submit_extra.R"),
        ({"submit_args": (("foo", "1"),), "launch_args": (("foo", "1"),)}, "scheduler.extra.foo"),
        ({"launch_args": (("smpiargs", "-gpu"),)}, "launch_extra.smpiargs"),
        ({"flavour": "csm", "constraint": "x"}, "scheduler.constraint"),
        ({"flavour": "csm", "nodelist": "x"}, "scheduler.nodelist"),
        ({"flavour": "csm", "exclude": "x"}, "scheduler.exclude"),
        ({"flavour": "csm", "mem_per_node": 5}, "resources.mem_per_node"),
        ({"flavour": "csm", "submit_args": (("R", "select[x]"),)}, "submit_extra.R"),
        ({"flavour": "csm", "launch_args": (("n", "9"),)}, "launch_extra.n"),
    ],
)
def test_what_lsf_cannot_express_is_refused_by_name(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(PlanError) as error:
        capability_checks.check(LSF, lsf(**fields))
    assert str(error.value.where).endswith(key)


def test_a_name_that_no_array_can_have_is_refused_for_arrays_only() -> None:
    assert submitted(lsf(job_name="my run"))["J"] == "my run"
    with pytest.raises(PlanError, match=r"job_name.*(?s:.)*my_run"):
        LSF.script(spec(lsf(job_name="my run"), runs=(0, 1)))


def test_an_option_for_both_commands_goes_to_the_one_that_knows_it() -> None:
    given = (("alloc_flags", "gpumps smt1"), ("smpiargs", "-gpu"), ("sla", "x"))
    asked = csm(submit_args=given, launch_args=given)
    capability_checks.check(LSF, asked)
    found = submitted(asked)
    assert (found["alloc_flags"], found["sla"]) == ("gpumps smt1", "x")
    assert "smpiargs" not in found
    assert jsrun(asked)["smpiargs"] == "-gpu"
    assert not jsrun(asked).keys() & {"alloc_flags", "sla"}


def test_given_options_override_and_remove_ours() -> None:
    asked = csm(time_limit=60, queue="a", launch_args=(("b", "rs"),), submit_args=(("W", "2:00"),), removed_args=("q",))
    assert (submitted(asked)["W"], "q" in submitted(asked)) == ("2:00", False)
    assert jsrun(asked)["bind"] == "rs"


@pytest.mark.parametrize(
    ("fields", "there"),
    [({}, {"rn"}), ({"submit_args": (("r", None),)}, {"r"}), ({"removed_args": ("rn",)}, set())],
)
def test_a_job_is_not_run_again_unless_that_is_asked_for(fields: dict[str, Any], there: set[str]) -> None:
    assert submitted(lsf(**fields)).keys() & {"r", "rn"} == there


def test_an_array_counts_from_one_and_its_limit_follows() -> None:
    assert submitted(lsf(array_parallelism=3), runs=5)["J"] == "hpc_hydra[1-5]%3"
    assert submitted(lsf(array_parallelism=3))["J"] == "hpc_hydra"
    assert LSF.parse_job_ids("Job <12> is submitted to queue <x>.\n", spec(lsf(), runs=(7, 9))) == ("12[1]", "12[2]")


def test_attached_runs() -> None:
    asked = lsf(queue="q", job_name="my run")
    job = spec(asked, workdir=Path("/work"))
    words = LSF.attach_command(Path("/work/.x/job0.sh"), job, {})
    assert words[:4] == ["bsub", "-I", "-J", "my run"] and words[-2:] == ["bash", ".x/job0.sh"]
    inside = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "h1 4 h2 4"}
    assert LSF.attach_command(Path("/x/job0.sh"), job, inside) == ["bash", "/x/job0.sh"]
    with pytest.raises(PlanError, match=r"resources\.nodes"):
        LSF.attach_command(Path("/x"), spec(lsf(nodes=3)), inside)
    with pytest.raises(PlanError, match="launch_dir"):
        LSF.attach_command(Path("/work/a b;c/job0.sh"), job, {})


def test_a_persons_own_defaults_reach_bsub_where_nothing_is_said() -> None:
    assert LSF.inherited_variables(lsf()) == {"LSB_DEFAULTQUEUE", "LSB_DEFAULTPROJECT", "LSB_DEFAULT_USERGROUP"}
    assert LSF.inherited_variables(lsf(queue="q", project="p")) == {"LSB_DEFAULT_USERGROUP"}


def test_the_launch_command_uses_the_interpreter_of_the_plan() -> None:
    assert LSF.launch_command(lsf())[0] == sys.executable


texts = st.one_of(
    st.none(),
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12).filter(
        lambda text: text.isprintable() and not ({'"', "'"} <= set(text))
    ),
)
names = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,12}", fullmatch=True)
hosts = st.one_of(st.none(), st.lists(names, min_size=1, max_size=3, unique=True).map(",".join))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    flavour = draw(st.sampled_from([None, "standard", "csm"]))
    standard = flavour != "csm"
    exclusive = draw(st.booleans()) and standard
    return Request(
        scheduler="lsf",
        flavour=flavour,
        nodes=draw(st.integers(1, 9999)),
        procs_per_node=draw(st.integers(1, 64)),
        gpus_per_proc=draw(st.integers(0, 8)),
        cpus_per_proc=draw(st.one_of(st.none(), st.integers(1, 256))),
        mem_per_node=draw(st.one_of(st.none(), st.integers(1, 10**7))) if standard else None,
        time_limit=draw(st.one_of(st.none(), st.integers(1, 10**7))),
        exclusive=exclusive,
        job_name=draw(names),
        queue=draw(texts),
        project=draw(texts),
        user_group=draw(texts),
        reservation=draw(texts),
        constraint=draw(st.one_of(st.none(), names)) if standard else None,
        nodelist=draw(hosts) if standard else None,
        exclude=draw(hosts) if standard else None,
        mail_type=draw(st.sampled_from([None, "BEGIN", "END", "ALL"])),
        mail_user=draw(texts),
        array_parallelism=draw(st.one_of(st.none(), st.integers(1, 100))),
    )


@given(requests(), st.integers(1, 5))
def test_a_script_read_back_is_the_request(asked: Request, runs: int) -> None:
    capability_checks.check(LSF, asked)
    found = submitted(asked, runs)
    name = re.fullmatch(r"(.*?)(?:\[1-(\d+)\](?:%(\d+))?)?", found["J"])
    assert name and (name[2] is None) == (runs == 1)
    clock = re.fullmatch(r"(\d+):(\d\d)", found.get("W") or "")
    parts = sections(found.get("R") or "")
    select = [term.strip() for term in parts.get("select", "").split("&&") if term]
    read: dict[str, Any] = {
        "job_name": name[1],
        "queue": found.get("q"),
        "project": found.get("P"),
        "user_group": found.get("G"),
        "reservation": found.get("U"),
        "mail_user": found.get("u"),
        "mail_type": {(1, 0): "BEGIN", (0, 1): "END", (1, 1): "ALL"}.get(("B" in found, "N" in found)),  # type: ignore[call-overload]
        "time_limit": (int(clock[1]) * 60 + int(clock[2])) * 60 if clock else None,
    }
    if asked.flavour == "csm":
        sets = jsrun(asked)
        read["nodes"] = int(found["nnodes"])
        assert int(sets["nrs"]) == asked.nodes
        read["procs_per_node"] = int(sets["tasks_per_rs"])
        read["gpus_per_proc"] = int(sets["gpu_per_rs"]) // asked.procs_per_node
        cores = sets["cpu_per_rs"]
        read["cpus_per_proc"] = None if cores == "ALL_CPUS" else int(cores) // asked.procs_per_node
    else:
        slots = int(parts["span"].removeprefix("ptile="))
        words = LSF.launch_command(asked)
        read["nodes"] = int(found["n"]) // slots
        read["procs_per_node"] = int(words[words.index("--procs") + 1])
        cores = words[words.index("--cpus-per-proc") + 1] if "--cpus-per-proc" in words else None
        read["cpus_per_proc"] = int(cores) if cores else None
        assert slots == asked.procs_per_node * (asked.cpus_per_proc or 1)
        gpus = re.match(r"num=(\d+):", found.get("gpu") or "")
        read["gpus_per_proc"] = int(gpus[1]) // asked.procs_per_node if gpus else 0
        memory = re.search(r"mem=(\d+)MB/host", parts.get("rusage", ""))
        read["mem_per_node"] = int(memory[1]) if memory else None
        read["exclusive"] = "x" in found
        read["nodelist"] = ",".join(found["m"].split()) if "m" in found else None
        read["exclude"] = ",".join(t.removeprefix("hname!=") for t in select if t.startswith("hname!=")) or None
        read["constraint"] = next((term.strip("()") for term in select if term.startswith("(")), None)
    rounded = -(-asked.time_limit // 60) * 60 if asked.time_limit is not None else None
    assert dataclasses.replace(asked, **read) == dataclasses.replace(asked, time_limit=rounded)


def test_the_warning_before_the_end_is_reported_in_minutes() -> None:
    found = submitted(lsf(time_limit=600, warning="USR1@90"))
    assert (found["wa"], found["wt"]) == ("USR1", "2")
    with pytest.raises(PlanError, match=r"launch\.signal_before_end"):
        capability_checks.check(LSF, lsf(time_limit=120, warning="USR1@90"))


def test_one_exit_code_is_requeued_and_it_is_ours() -> None:
    assert submitted(lsf(max_requeues=1))["Q"] == "75" == str(LSF.requeue_exit_code)
    assert "Q" not in submitted(lsf())
    for other in ({"submit_args": (("Q", "99"),)}, {"removed_args": ("Q",)}):
        with pytest.raises(PlanError, match=r"scheduler\.submit_extra\.Q"):
            capability_checks.check(LSF, lsf(max_requeues=1, **other))
