"""Which machine and which scheduler: tables of what a machine shows, and what it must be taken for."""

from __future__ import annotations

import re

import pytest

from hpc_hydra.errors import PlanError, SchedulerError
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.system import detect, index
from hpc_hydra.system.hardware import Hardware
from hpc_hydra.system.probe import Probe, Unanswered
from tests.unit.system.conftest import SLURM_IS_UP, Composed, auto, machine

BY_NAME = [
    ("login05", "login05.frontier.olcf.ornl.gov", "frontier"),
    ("frontier04086", "frontier04086.frontier.olcf.ornl.gov", "frontier"),
    ("frontier04086", None, "frontier"),
    ("uan01", "uan01.lumi.csc.fi", "lumi"),
    ("login01", "login01-ext.leonardo.cineca.it", "leonardo"),
    ("login07-ext.leonardo.cineca.it", "login07-ext.leonardo.cineca.it", "leonardo"),
    ("jwb0123", None, "juwels_booster"),
    ("jwb0123", "jwb0123.juwels", "juwels_booster"),
    ("clariden-ln001", None, "clariden"),
    ("clariden-ln001", "clariden-ln001.alps.cscs.ch", "clariden"),
    ("daint-ln002", None, "daint"),
    ("login2", "login2.vista.tacc.utexas.edu", "vista"),
    ("c608-012", "c608-012.vista.tacc.utexas.edu", "vista"),
    ("login1", "login1.ls6.tacc.utexas.edu", "lonestar6"),
    ("login1", "login1.stampede3.tacc.utexas.edu", "stampede3"),
    ("vglogin0005", None, "vega"),
    ("tuolumne1004", None, "tuolumne"),
    ("tuolumne1004", "tuolumne1004.llnl.gov", "tuolumne"),
    ("elcap1", None, "elcap"),
    ("rzadams1008", None, "rzadams"),
    ("tenaya4", None, "tenaya"),
    ("tioga11", None, "tioga"),
    ("rzvernal10", None, "rzvernal"),
    ("corona173", None, "corona"),
    ("lassen708", None, "lassen"),
    ("sierra4361", None, "sierra"),
    ("rzansel5", None, "rzansel"),
    ("matrix3", None, "matrix"),
    ("rzvector2", None, "rzvector"),
    ("ipa17", None, "ipa"),
    ("polaris-login-02", "polaris-login-02.hsn.cm.polaris.alcf.anl.gov", "polaris"),
    ("x3005c0s13b0n0", "x3005c0s13b0n0.hsn.cm.polaris.alcf.anl.gov", "polaris"),
    ("x4706c4s2b0n0", "x4706c4s2b0n0.hsn.cm.aurora.alcf.anl.gov", "aurora"),
    # names that several sites share, and names that only look like a machine's
    ("nid001234", None, None),
    ("nid006363", "nid006363.local", None),
    ("login05", None, None),
    ("login1", "login1.example.org", None),
    ("gn05", None, None),
    ("cn0123", None, None),
    ("gcn7", None, None),
    ("acn12", None, None),
    ("uan01", None, None),
    ("c608-012", None, None),
    ("x3005c0s13b0n0", None, None),
    ("frontier", "frontier.example.org", None),
    ("frontier1", "frontier1.example.org", None),
    ("matrix", None, None),
    ("sierra", "sierra.fritz.box", None),
    ("notfrontier01", None, None),
    ("vistalogin", "vistalogin.tacc.utexas.edu", None),
]


@pytest.mark.parametrize(("host", "full", "name"), BY_NAME)
def test_a_machine_is_detected_by_its_host_name(host: str, full: str | None, name: str | None) -> None:
    assert detect.machine(machine(host, full)).name == name


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("SYSTEMNAME", "juwelsbooster", "juwels_booster"),
        ("SYSTEMNAME", "juwels", None),
        ("CLUSTER_NAME", "clariden", "clariden"),
        ("CLUSTER_NAME", "daint", "daint"),
        ("CLUSTER_NAME", "eiger", None),
        ("CLUSTER_NAME", "", None),
        ("NERSC_HOST", "perlmutter", "perlmutter"),
        ("NERSC_HOST", "muller", None),
        ("SLURM_CLUSTER_NAME", "frontier", None),
    ],
)
def test_a_machine_is_detected_by_the_variable_of_its_site(variable: str, value: str, name: str | None) -> None:
    assert detect.machine(machine("nid001234", env={variable: value})).name == name


def test_a_machine_is_detected_by_the_file_of_its_site() -> None:
    assert detect.machine(machine("node1", files={"/etc/FZJ/systemname": "juwelsbooster\n"})).name == "juwels_booster"


def test_variable_goes_before_file_and_name() -> None:
    probe = machine("daint-ln001", env={"CLUSTER_NAME": "clariden"}, files={"/etc/FZJ/systemname": "juwelsbooster"})
    assert detect.machine(probe).name == "clariden"


def test_no_two_machines_claim_one_name() -> None:
    for host, full, _ in BY_NAME:
        for name in filter(None, (host, full)):
            claims = [sign.name for sign in index.signs() if any(re.fullmatch(each, name) for each in sign.hostnames)]
            assert len(claims) <= 1, (name, claims)


def test_every_machine_that_names_hosts_is_in_the_table() -> None:
    with_hosts = {sign.name for sign in index.signs() if sign.hostnames}
    untold = {
        "crux",
        "derecho",
        "gadi",
        "sophia",
        "snellius",
        "karolina",
        "delta",
        "deltaai",
        "perlmutter",
    }  # by their domain alone
    assert with_hosts - untold <= {name for _, _, name in BY_NAME}


@pytest.mark.parametrize("name", index.names())
def test_what_is_read_for_detection_is_what_the_file_says(name: str) -> None:
    own = index.preset(name)
    sign = next(sign for sign in index.signs() if sign.name == name)
    assert dict(sign.site_env) == own.site_env
    assert dict(sign.site_file) == own.site_file
    assert list(sign.hostnames) == own.hostnames


DETECTED = [
    ("frontier", machine("login05", "login05.frontier.olcf.ornl.gov")),
    ("juwels_booster", machine("jwlogin22", env={"SYSTEMNAME": "juwelsbooster"})),
    ("clariden", machine("nid001234", env={"CLUSTER_NAME": "clariden"})),
    ("vista", machine("login2", "login2.vista.tacc.utexas.edu")),
]


@pytest.mark.parametrize(("name", "probe"), DETECTED)
def test_detected_machine_is_the_same_as_the_chosen_one(name: str, probe: Probe, composed: Composed) -> None:
    assert detect.resolve(composed(), probe=probe) == detect.resolve(composed(f"system={name}"), probe=machine())


def test_users_own_facts_stay_over_detected_ones(composed: Composed) -> None:
    overrides = (
        "system.interface=hsn2",
        "system.cores_per_node=48",
        "system.env.NCCL_CROSS_NIC.value='0'",
        "system.queues.batch.max_nodes=10",
        "scheduler.account=abc123",
    )
    probe = machine("login05", "login05.frontier.olcf.ornl.gov")
    found = detect.resolve(composed(*overrides), probe=probe)
    assert found == composed("system=frontier", *overrides)
    assert found.system.queues["batch"].time_by_nodes


def test_scheduler_chosen_by_hand_stays(composed: Composed) -> None:
    probe = machine("login05", "login05.frontier.olcf.ornl.gov", commands=SLURM_IS_UP)
    found = detect.resolve(composed("scheduler=local"), probe=probe)
    assert (found.scheduler.name, found.system.cores_per_node) == ("local", 56)
    chosen = detect.resolve(composed("system=frontier", "scheduler=local"), probe=machine())
    assert chosen == found


def test_a_chosen_machine_asks_nothing(composed: Composed) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("was asked")

    probe = machine()
    probe.hostname = probe.full_name = probe.run = probe.hardware = refuse  # type: ignore[assignment]
    settings = composed("system=frontier", "resources.nodes=2")
    assert detect.resolve(settings, probe=probe) == settings


def test_each_question_is_asked_once() -> None:
    asked: list[str] = []
    probe = machine(commands=SLURM_IS_UP | {"sinfo": "gpu*|8|32000|gpu:4\n"})
    run = probe.run
    probe.run = lambda argv: (asked.append(argv[0]), run(argv))[1]  # type: ignore[func-returns-value]
    for _ in range(3):
        detect.resolve(auto(), probe=probe)
    assert asked == ["scontrol", "sinfo"]


def test_detection_is_idempotent() -> None:
    for probe in (machine(), machine(commands=SLURM_IS_UP), machine("login1", "login1.frontier.olcf.ornl.gov")):
        once = detect.resolve(auto(), probe=probe)
        assert detect.resolve(once, probe=probe) == once


def test_what_was_given_is_left_alone() -> None:
    settings = auto(system={"interface": "ib0"})
    detect.resolve(settings, probe=machine("login1", "login1.frontier.olcf.ornl.gov"))
    assert settings == auto(system={"interface": "ib0"})


# ---- which scheduler


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("Slurmctld(primary) at adm1 is UP\n", "slurm"),
        ("Slurmctld(primary) at adm1 is DOWN\nSlurmctld(backup) at adm2 is UP\n", "slurm"),
        ("Slurmctld(primary) at adm1 is DOWN\n", "local"),
        ("", "local"),
        (None, "local"),
    ],
)
def test_scheduler_is_one_that_answers(answer: str | None, name: str) -> None:
    commands = {} if answer is None else {"scontrol ping": answer}
    assert detect.resolve(auto(), probe=machine(commands=commands)).scheduler.name == name


LATE = Unanswered("no answer in 5 s", late=True)


@pytest.mark.parametrize(
    ("command", "name"), [("scontrol ping", "slurm"), ("flux queue status", "flux"), ("lsid", "lsf")]
)
def test_scheduler_that_is_slow_to_answer_is_not_taken_for_none(command: str, name: str) -> None:
    probe = machine(commands={command: LATE})
    with pytest.raises(SchedulerError) as caught:
        detect.resolve(auto(), probe=probe)
    first = command.partition(" ")[0]
    assert f"{first} is here but does not answer (5 s)" in str(caught.value)
    assert f"scheduler={name} to submit anyway, scheduler=local to run here" in str(caught.value)
    assert caught.value.exit_code == 2
    assert not any(step.found == "local" for step in detect.explain(probe))
    local = auto(scheduler={"name": "local", "kind": "known"})
    assert detect.resolve(local, probe=probe).scheduler.name == "local"


def test_another_scheduler_that_answers_is_taken_beside_a_slow_one() -> None:
    assert detect.resolve(auto(), probe=machine(commands={"scontrol": LATE, "lsid": LSID})).scheduler.name == "lsf"


def test_scheduler_whose_command_fails_at_once_is_none_and_that_is_noted() -> None:
    failed = {"scontrol ping": Unanswered("Slurmctld(primary) at adm1 is DOWN")}
    probe = machine(commands=failed)
    done = detect.resolve(auto(), probe=probe)
    assert done.scheduler.name == "local"
    (note,) = detect.notes(auto(), done, probe)
    assert "scontrol is here but fails (Slurmctld(primary) at adm1 is DOWN): this runs on this machine" in note
    assert "scheduler=slurm to submit anyway" in note
    by_hand = auto(scheduler={"name": "local", "kind": "known"})
    assert detect.notes(by_hand, detect.resolve(by_hand, probe=probe), probe) == ()
    assert detect.notes(auto(), done, machine(env={"SLURM_CONF": "/dev/null"}, commands=failed)) == ()
    assert detect.notes(auto(), done, machine()) == ()


def test_a_scheduler_that_a_variable_switches_off_is_not_asked() -> None:
    probe = machine(env={"SLURM_CONF": "/dev/null"}, commands=SLURM_IS_UP | {"lsid": LSID})
    assert detect.resolve(auto(), probe=probe).scheduler.name == "lsf"
    assert next(step.looked_at for step in detect.answering(probe).steps) == "scheduler slurm"


def test_variables_of_a_job_around_us_say_nothing_about_the_scheduler() -> None:
    env = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "frontier", "LSB_JOBID": "3", "FLUX_URI": "local:///x"}
    assert detect.resolve(auto(), probe=machine(env=env)).scheduler.name == "local"


def test_machine_without_adapter_is_refused_in_plain_words(composed: Composed) -> None:
    with pytest.raises(PlanError, match="lassen runs OAR, and there is no OAR adapter yet"):
        detect.resolve(composed("system=lassen", "system.scheduler=oar"), probe=machine())


# ---- machines that no file describes

SINFO = "gpu*|96|515000|gpu:h100:4(S:0-1)\ngpu*|64|256000|gpu:a100:8\ncpu|128|512000|(null)\n"


@pytest.mark.parametrize(
    ("queue", "resources", "facts"),
    [
        (None, {}, (64, 4, "256000M")),
        ("gpu", {}, (64, 4, "256000M")),
        ("cpu", {}, (128, 0, "512000M")),
        ("cpu,gpu", {}, (64, 4, "256000M")),
        ("cpu,gpu", {"gpus_per_proc": 0}, (64, 0, "256000M")),
        ("elsewhere", {}, (None, None, None)),
    ],
)
def test_unknown_cluster_is_described_by_its_compute_nodes(
    queue: str | None, resources: dict[str, int], facts: tuple[object, ...]
) -> None:
    probe = machine(commands=SLURM_IS_UP | {"sinfo": SINFO})
    system = detect.resolve(auto(scheduler={"queue": queue}, resources=resources), probe=probe).system
    assert (system.name, system.kind, system.scheduler) == ("unknown", "probed", "slurm")
    assert (system.cores_per_node, system.gpus_per_node, system.mem_per_node) == facts


def test_queue_of_the_users_own_profile_leads_to_its_partition() -> None:
    probe = machine(commands=SLURM_IS_UP | {"sinfo": SINFO})
    system = {"queues": {"big": {"partition": "cpu"}}, "default_queue": "big"}
    assert detect.resolve(auto(system=system), probe=probe).system.cores_per_node == 128


@pytest.mark.parametrize(
    ("queue", "nodes", "has"),
    [
        (None, 7, "gpu has 6"),
        (None, 6, None),
        ("cpu", 3, "cpu has 2"),
        ("cpu,gpu", 6, None),
        ("cpu,gpu", 9, "gpu has 6"),
        ("cpu,hidden", 9, None),
        ("hidden", 9, None),
        ("untold", 9, None),
    ],
)
def test_more_nodes_than_a_partition_has_are_noted(queue: str | None, nodes: int, has: str | None) -> None:
    text = "gpu*|96|515000|gpu:4|4\ngpu*|64|256000|gpu:8|2\ncpu|128|512000|(null)|2\nuntold|8|32000|\n"
    asked = auto(scheduler={"queue": queue}, resources={"nodes": nodes})
    for env, noted in (({"HOME": "/nowhere"}, has is not None), (HELD, False)):  # in an allocation, its nodes count
        probe = machine(env=env, commands=SLURM_IS_UP | {"scontrol show job": SHOWN, "sinfo": text})
        resolved = detect.resolve(asked, probe=probe)
        notes = detect.beyond_partition(resolved, plan(resolved).request, probe)
        assert len(notes) == noted
        assert all(f"resources.nodes={nodes}: partition {has}, " in note for note in notes)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"resources": {"gpus_at_least": 28}}, "7 nodes: partition gpu has 6, "),
        (
            {"resources": {"nodes": 5}, "launch": {"preflight": True, "spare_nodes": 2}},
            "resources.nodes=5 and launch.spare_nodes=2: partition gpu has 6, ",
        ),
        ({"resources": {"nodes": 5}, "launch": {"preflight": True, "spare_nodes": 1}}, None),
    ],
)
def test_all_nodes_of_a_job_are_compared_with_the_partition(groups: dict[str, object], told: str | None) -> None:
    probe = machine(commands=SLURM_IS_UP | {"sinfo": "gpu*|96|515000|gpu:4|6\n"})
    resolved = detect.resolve(auto(**groups), probe=probe)
    notes = detect.beyond_partition(resolved, plan(resolved).request, probe)
    assert len(notes) == (told is not None) and all(note.startswith(told or "") for note in notes)


@pytest.mark.parametrize(
    ("queue", "limit", "told"),
    [
        (None, "30m", None),
        (None, 31, "gpu allows 30m"),
        ("long", "1d", None),
        ("long", "1d1s", "long allows 1d"),
        ("days", "49h", "days allows 2d"),
        ("gpu,long", "24h", None),
        ("gpu,long", "25h", "long allows 1d"),
        ("gpu,infinite", "99d", None),
        ("unlimited", "99d", None),
        ("na", "99d", None),
        ("untold", "99d", None),
        ("gpu,hidden", "99d", None),
        ("gpu", None, None),
    ],
)
def test_a_time_limit_above_that_of_a_partition_is_noted(
    queue: str | None, limit: str | int | None, told: str | None
) -> None:
    limits = {"gpu*": "30:00", "long": "1-00:00:00", "days": "2-00"}
    limits |= {"infinite": "infinite", "unlimited": "UNLIMITED", "na": "n/a"}
    text = "".join(f"{name}|8|32000|gpu:4|6|{each}\n" for name, each in limits.items()) + "untold|8|32000|gpu:4|6\n"
    asked = auto(scheduler={"queue": queue}, resources={"time_limit": limit})
    for env, noted in (({"HOME": "/nowhere"}, told is not None), (HELD, False)):  # in an allocation, its limit counts
        probe = machine(env=env, commands=SLURM_IS_UP | {"scontrol show job": SHOWN, "sinfo": text})
        resolved = detect.resolve(asked, probe=probe)
        notes = detect.beyond_partition(resolved, plan(resolved).request, probe)
        assert len(notes) == noted
        assert all(f": partition {told}, so this cannot start " in note for note in notes)
        less = auto(scheduler={"queue": queue, "extra": {"time-min": 10}}, resources={"time_limit": limit})
        assert detect.beyond_partition(resolved, plan(detect.resolve(less, probe=probe)).request, probe) == ()


@pytest.mark.parametrize(
    ("queue", "named"),
    [("gpuu", "partition gpuu (did you mean gpu?): sinfo lists gpu, cpu;"), ("cpu,x", "partition x: "), ("cpu", None)],
)
def test_a_partition_that_is_not_listed_is_noted(queue: str, named: str | None) -> None:
    asked = auto(scheduler={"queue": queue})
    for env in ({"HOME": "/nowhere"}, HELD):  # in an allocation, the queue does not apply
        probe = machine(env=env, commands=SLURM_IS_UP | {"scontrol show job": SHOWN, "sinfo": SINFO})
        notes = detect.notes(asked, detect.resolve(asked, probe=probe), probe)
        assert [note.startswith(named) for note in notes] == [True] * (named is not None and env is not HELD)


def test_unknown_cluster_seen_from_elsewhere_is_not_known() -> None:
    system = detect.resolve(auto(scheduler={"name": "slurm", "kind": "known"}), probe=machine()).system
    assert (system.cores_per_node, system.gpus_per_node) == (None, None)


SLOW = Unanswered("no answer in 5 s", late=True)
DOWN = Unanswered("slurm_load_partitions: Unable to contact slurm controller (connect failure)")
UNSURE = pytest.mark.parametrize("answer", [SLOW, DOWN], ids=["slow", "down"])
CHOSEN = {"name": "slurm", "kind": "known"}


@UNSURE
@pytest.mark.parametrize("scheduler", [{}, CHOSEN], ids=["auto", "slurm"])
def test_a_sinfo_that_tells_nothing_makes_no_small_job_without_gpus(answer: Unanswered, scheduler: object) -> None:
    probe = machine(commands=SLURM_IS_UP | {"sinfo": answer})
    groups = {"scheduler": scheduler} if scheduler else {}
    with pytest.raises(SchedulerError, match=r"sinfo is here but[\s\S]*Try:.*system\.gpus_per_node="):
        detect.resolve(auto(**groups), probe=probe)
    told = {"cores_per_node": 64, "gpus_per_node": 4}
    assert detect.resolve(auto(**groups, system=told), probe=probe).system.gpus_per_node == 4
    dry = auto(**groups, launch={"dry_run": True})
    (note,) = detect.notes(dry, detect.resolve(dry, probe=probe), probe)
    assert "sinfo" in note and "sizes may differ" in note


HELD = {"HOME": "/nowhere", "SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8"}
SHOWN = "JobId=7 JobState=RUNNING NodeList=n1 NumCPUs=8 TRES=cpu=8,gres/gpu=2"


@UNSURE
def test_an_allocation_tells_what_it_has_where_sinfo_does_not(answer: Unanswered) -> None:
    probe = machine(env=HELD, commands=SLURM_IS_UP | {"scontrol show job": SHOWN, "sinfo": answer})
    system = detect.resolve(auto(), probe=probe).system
    assert (system.cores_per_node, system.gpus_per_node) == (8, 2)


@UNSURE
def test_runs_become_no_jobs_because_nobody_tells_whether_the_allocation_lives(answer: Unanswered) -> None:
    probe = machine(env=HELD, commands=SLURM_IS_UP | {"scontrol show job": answer, "sinfo": SINFO})
    for inside in (None, "step"):
        with pytest.raises(SchedulerError, match=r"launch\.inside[\s\S]*launch\.inside=submit"):
            detect.resolve(auto(launch={"inside": inside}), probe=probe)
    assert detect.resolve(auto(launch={"inside": "submit"}), probe=probe).system.cores_per_node == 64


def test_no_answer_but_that_there_is_no_such_job_makes_a_second_one() -> None:
    said = Unanswered("scontrol: unrecognized option '-o'")
    probe = machine(env=HELD, commands=SLURM_IS_UP | {"scontrol show job": said, "sinfo": SINFO})
    with pytest.raises(SchedulerError, match=r"unrecognized option[\s\S]*launch\.inside=submit"):
        detect.resolve(auto(), probe=probe)


def test_a_job_that_slurm_does_not_know_is_no_allocation() -> None:
    gone = Unanswered("slurm_load_jobs error: Invalid job id specified")
    probe = machine(env=HELD, commands=SLURM_IS_UP | {"scontrol show job": gone, "sinfo": SINFO})
    assert detect.resolve(auto(), probe=probe).system.cores_per_node == 64


def test_unknown_machine_without_scheduler_is_read_from_the_system() -> None:
    seen = Hardware(
        cores=64, numa_domains=2, memory=515000, gpus=8, gpu_vendor="amd", gpu_arch="gfx90a", mem_per_gpu=64.0
    )
    system = detect.resolve(auto(system={"gpus_per_node": 2}), probe=machine(hardware=seen)).system
    assert (system.name, system.kind, system.cores_per_node, system.gpu_vendor) == ("local", "local", 64, "amd")
    assert (system.gpus_per_node, system.mem_per_node, system.numa_domains) == (2, "515000M", 2)


# ---- why


def test_explanation_tells_every_step_up_to_the_one_that_decided() -> None:
    steps = detect.explain(machine("login05", "login05.frontier.olcf.ornl.gov"))
    assert [step.looked_at for step in steps if step.decided] == ["full host name", "scheduler of frontier"]
    assert [step.found for step in steps if step.looked_at == "variable CLUSTER_NAME"] == ["not set"]


def test_explanation_of_an_unknown_machine_ends_with_its_scheduler() -> None:
    steps = detect.explain(machine("nid001234", commands=SLURM_IS_UP))
    assert [step.looked_at for step in steps if step.decided] == ["command scontrol ping"]
    assert detect.explain(machine())[-1] == detect.Step("no scheduler", "local", True)


LSID = "IBM Spectrum LSF Standard 10.1.0.12, Jun 10 2022\n\nMy cluster name is summit\nMy master name is adm1\n"


@pytest.mark.parametrize(
    ("answer", "name"), [(LSID, "lsf"), ("lsid: ls_getclustername failed: LIM is down\n", "local")]
)
def test_lsf_is_there_where_lsid_answers(answer: str, name: str) -> None:
    assert detect.resolve(auto(), probe=machine(commands={"lsid": answer})).scheduler.name == name


@pytest.mark.parametrize("name", ["lassen", "sierra", "rzansel"])
def test_csm_machines_know_their_flavour_and_leave_it_to_lsf(name: str, composed: Composed) -> None:
    asked = plan(detect.resolve(composed(f"system={name}", "resources.nodes=2"), probe=machine())).request
    assert (asked.scheduler, asked.flavour, asked.queue) == ("lsf", "csm", "pbatch")
    here = plan(detect.resolve(composed(f"system={name}", "scheduler=local"), probe=machine())).request
    assert here.flavour is None
    with pytest.raises(PlanError, match=r"scheduler=slurm does not support scheduler\.flavour=csm"):
        asked = plan(detect.resolve(composed("scheduler=slurm", "scheduler.flavour=csm"), probe=machine())).request
        capability_checks.check(adapter_for("slurm"), asked)


@pytest.mark.parametrize(
    ("name", "queue"), [("tuolumne", "pbatch"), ("elcap", "pbatch"), ("corona", "pbatch"), ("tioga", "pdebug")]
)
def test_machines_with_flux_ask_flux_for_whole_nodes(name: str, queue: str, composed: Composed) -> None:
    asked = plan(detect.resolve(composed(f"system={name}", "resources.nodes=2"), probe=machine())).request
    assert (asked.scheduler, asked.queue, asked.exclusive) == ("flux", queue, True)
    found = detect.resolve(auto(), probe=machine(f"{name}1"))
    assert (found.system.name, found.scheduler.name) == (name, "flux")
