"""What SLURM's commands print, read: ids, states, refusals, jobs found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import State
from hpc_hydra.schedulers.slurm.adapter import STATES, Slurm
from tests.unit.schedulers.specs import request, spec

SLURM = Slurm()
ONE, THREE = spec(), spec(runs=(4, 5, 6))
BANNER = "*******\nWelcome to Cluster3 - 2 jobs left\n 404 seats\nsee 12 rules\n*******\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "12345\n",
        "12345;clusterA\n",
        f"{BANNER}12345\n",
        "12345\nbye\n",
        "Submitted batch job 12345\n",
        f"{BANNER}Submitted batch job 12345 on cluster A\n",
        "sbatch: lua: checked 3 rules\n12345",
        "  12345  \r\n",
    ],
)
def test_the_id_is_found_in_what_sbatch_prints(text: str) -> None:
    assert SLURM.parse_job_ids(text, ONE) == ("12345",)
    assert SLURM.parse_job_ids(text, THREE) == ("12345_0", "12345_1", "12345_2")


@pytest.mark.parametrize("text", ["", "\n", "Welcome to Cluster3 - 2 jobs left\n", "sbatch: error: ... 404 ..."])
def test_no_id_is_invented(text: str) -> None:
    with pytest.raises(SchedulerError) as error:
        SLURM.parse_job_ids(text, ONE)
    assert text.strip() in str(error.value)


@pytest.mark.parametrize(
    ("native", "state"),
    [
        ("PENDING", State.PENDING), ("CONFIGURING", State.PENDING), ("REQUEUED", State.PENDING),
        ("REQUEUE_HOLD", State.PENDING), ("SPECIAL_EXIT", State.PENDING), ("RUNNING", State.RUNNING),
        ("COMPLETING", State.RUNNING), ("SUSPENDED", State.RUNNING), ("STOPPED", State.RUNNING),
        ("RESIZING", State.RUNNING), ("STAGE_OUT", State.RUNNING), ("COMPLETED", State.COMPLETED),
        ("FAILED", State.FAILED), ("NODE_FAIL", State.FAILED), ("OUT_OF_MEMORY", State.FAILED),
        ("BOOT_FAIL", State.FAILED), ("PREEMPTED", State.FAILED), ("CANCELLED", State.CANCELLED),
        ("CANCELLED by 1000", State.CANCELLED), ("CANCELLED+", State.CANCELLED), ("TIMEOUT", State.TIMEOUT),
        ("DEADLINE", State.TIMEOUT), ("NO_SUCH_STATE", State.UNKNOWN), ("", State.UNKNOWN),
    ],
)  # fmt: skip
def test_states_of_slurm_are_read(native: str, state: State) -> None:
    for command in SLURM.status_commands(["7"]):
        status = SLURM.parse_status(command, f"7|{native}|0:0|Unknown|None\n")["7"]
        assert (status.state, status.native) == (state, native.rstrip("+"))  # with who cancelled it


@pytest.mark.parametrize(
    ("native", "cause"),
    [
        ("OUT_OF_MEMORY", "out_of_memory"), ("NODE_FAIL", "node_lost"), ("BOOT_FAIL", "node_lost"),
        ("PREEMPTED", "preempted"), ("FAILED", None), ("TIMEOUT", None), ("COMPLETED", None),
    ],
)  # fmt: skip
def test_states_that_give_a_cause(native: str, cause: str | None) -> None:
    assert SLURM.parse_status(["sacct"], f"7|{native}|0:9|Unknown|None")["7"].cause == cause


def test_only_states_that_are_over_count_as_finished() -> None:
    over = {name for name, state in STATES.items() if state.is_finished}
    assert over == {
        "COMPLETED", "FAILED", "BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "RECONFIG_FAIL", "CANCELLED", "REVOKED", "TIMEOUT", "DEADLINE",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "exit_code", "signal"),
    [
        ("0:0", 0, None),
        ("7:0", 7, None),
        ("0:9", 137, 9),
        ("0", 0, None),
        ("1792", 7, None),
        ("9", 137, 9),
        ("", None, None),
    ],
)
def test_exit_codes_of_sacct_and_squeue(text: str, exit_code: int | None, signal: int | None) -> None:
    status = SLURM.parse_status(["sacct"], f"7|FAILED|{text}|Unknown|None")["7"]
    assert (status.exit_code, status.signal) == (exit_code, signal)


def test_a_running_job_has_no_exit_code() -> None:
    assert SLURM.parse_status(["squeue"], "7|RUNNING|0|2026-11-28T02:48:47|None")["7"].exit_code is None


def test_the_queue_tells_reason_and_estimated_start() -> None:
    said = SLURM.parse_status(["squeue"], "2_0|PENDING|0|2026-11-28T02:48:47|Resources\n2_1|PENDING|0|N/A|Priority\n")
    assert said["2_0"].reason == "Resources: the requested resources are not free yet"
    assert said["2_0"].start is not None
    assert (said["2_1"].reason, said["2_1"].start) == ("Priority: jobs of higher priority come first", None)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxJobsPerUserLimit", "you have reached the limit of running jobs of the QOS"),
        ("QOSMaxCpuPerUserLimit", "you have reached the limit of CPUs of the QOS"),
        ("AssocMaxJobsLimit", "you have reached the limit of running jobs of your account"),
        ("AssocGrpCpuLimit", "your account has reached its limit of CPUs"),
        ("AssocGrpCPUMinutesLimit", "your account has used up its minutes of CPUs"),
        (
            "AssocGrpGRESRunMinutes",
            "running jobs of your account use all its minutes of GPUs or other generic resources",
        ),
        ("QOSGrpNodeLimit", "the QOS has reached its limit of nodes"),
        ("QOSMaxWallDurationPerJobLimit", "it requests more time (resources.time_limit) than the QOS allows per job"),
        ("QOSMaxMemoryPerNode", "it requests more memory per node than the QOS allows"),
        ("AssocMaxCpuMinutesPerJobLimit", "it requests more minutes of CPUs than your account allows per job"),
        ("QOSMinGRES", "it requests less GPUs or other generic resources than the QOS requires"),
        ("MaxGRESPerAccount", "your account has reached the limit of GPUs or other generic resources of the QOS"),
        ("PartitionTimeLimit", "its time limit is above that of the partition (resources.time_limit)"),
        ("Dependency", "it waits for another job"),
    ],
)
def test_why_a_job_waits_is_said_in_words(reason: str, words: str) -> None:
    assert SLURM.parse_status(["squeue"], f"7|PENDING|0|N/A|{reason}")["7"].reason == f"{reason}: {words}"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("JobArrayTaskLimit", ""),
        ("DependencyNeverSatisfied", "DependencyNeverSatisfied: the job that it waits for failed"),
        ("OutOfMemory", "OutOfMemory"),
    ],
)
def test_why_a_cancelled_job_had_waited_is_not_why_it_ended(reason: str, said: str) -> None:
    found = SLURM.parse_status(["squeue"], f"7|CANCELLED|0|N/A|{reason}")["7"].reason
    assert found.startswith(said) and bool(found) == bool(said)


def test_what_is_said_beside_a_reason_is_kept() -> None:
    said = SLURM.parse_status(["squeue"], "7|PENDING|0|N/A|ReqNodeNotAvail, UnavailableNodes:n[1-3]")["7"].reason
    meaning = "a required node is down, drained, reserved or in use"
    assert said == f"ReqNodeNotAvail: {meaning}, UnavailableNodes:n[1-3]"


@pytest.mark.parametrize("reason", ["SomethingNew", "launch failed requeued held", "AssocGrpTapes"])
def test_a_reason_that_is_not_known_stays_as_it_is(reason: str) -> None:
    assert SLURM.parse_status(["squeue"], f"7|PENDING|0|N/A|{reason}")["7"].reason == reason


def test_waiting_elements_of_an_array_come_as_one_line() -> None:
    said = SLURM.parse_status(["sacct"], "5_[0-2,4%2]|PENDING|0:0|Unknown|None\n5_3|RUNNING|0:0|Unknown|None\n")
    assert sorted(said) == ["5_0", "5_1", "5_2", "5_3", "5_4"]


def test_elements_cancelled_before_they_began_are_told_of_by_the_array() -> None:
    said = SLURM.parse_status(
        ["sacct"], "5|CANCELLED by 0|0:0|2026-11-28T02:48:51|None\n5_3|RUNNING|0:0|Unknown|None\n"
    )
    status = SLURM.element_status("5_1", said)
    assert status is not None
    assert (status.state, status.native, status.exit_code) == (State.CANCELLED, "CANCELLED by 0", None)
    running = SLURM.element_status("5_3", said)
    assert running is not None
    assert running.state is State.RUNNING
    assert SLURM.element_status("6", said) is None


@pytest.mark.parametrize("early", ["5|COMPLETED|0:0|2026-11-28T15:10:14|None", "5|FAILED|3:0|2026-11-28T15:10:14|None"])
def test_the_end_of_one_element_is_not_that_of_all(early: str) -> None:
    """Accounting writes its row before it has written which element it is of."""
    said = SLURM.parse_status(["sacct"], early)
    assert [SLURM.element_status(job, said) for job in ("5_0", "5_1")] == [None, None]
    status = SLURM.element_status("5", said)
    assert status is not None and status.state.is_finished


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: x", "a|b", "JobID|State|ExitCode|Start|Reason", "||||"])
def test_lines_that_are_no_states_are_ignored(text: str) -> None:
    assert SLURM.parse_status(["squeue"], text) == {}


def test_one_command_asks_for_all_jobs() -> None:
    ids = [f"9_{i}" for i in range(1000)] + ["10", "11"]
    for command in SLURM.status_commands(ids):
        assert "--jobs=9,10,11" in command
        assert not any("json" in word for word in command)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["12"], ["12"]),
        (["12", "13"], ["12", "13"]),
        (["12_0", "12_1", "12_2", "12_7", "13"], ["12_[0-2,7]", "13"]),
        ([f"9_{i}" for i in range(1000)], ["9_[0-999]"]),
    ],
)
def test_one_command_cancels_all_jobs(ids: list[str], words: list[str]) -> None:
    assert SLURM.cancel_command(ids) == ["scancel", *words]


FAILED = "sbatch: error: Batch job submission failed:"
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (f"{FAILED} Invalid account or account/partition combination specified", "permanent"),
        ("sbatch: error: invalid partition specified: nosuch", "permanent"),
        ("sbatch: error: something with 404 in it", "permanent"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED} {POLICY}", "limit"),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED} {POLICY}", "limit"),
        (f"{FAILED} {POLICY}", "limit"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{FAILED} {POLICY}", "permanent"),
        (f"sbatch: error: AssocMaxNodePerJobLimit\n{FAILED} {POLICY}", "permanent"),
        (f"{FAILED} Socket timed out on send/recv operation", "transient"),
        (f"{FAILED} Unable to contact slurm controller (connect failure)", "transient"),
        (f"{FAILED} Zero Bytes were transmitted or received", "transient"),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", "transient"),
        (f"{FAILED} Resource temporarily unavailable", "limit"),
    ],
)  # fmt: skip
def test_refusals_of_sbatch_are_classified(message: str, kind: str) -> None:
    assert SLURM.classify(message) == kind


def test_a_job_is_found_by_its_tag() -> None:
    text = f"8|other|/x.sh\n9|{THREE.tag}x|/y.sh\n7|{THREE.tag}|/sweep/job0.sh\n"
    assert SLURM.parse_found(text, THREE, Path("/z.sh")) == ("7_0", "7_1", "7_2")
    assert SLURM.parse_found(text, spec(tag="none"), Path("/sweep/job0.sh")) == ()


def test_a_job_with_the_users_comment_is_found_by_its_script() -> None:
    mine = spec(request(comment="a | b"))
    assert SLURM.parse_found("7|a | b|/my sweep/job0.sh\n", mine, Path("/my sweep/job0.sh")) == ("7",)


def test_a_persons_default_account_survives_where_none_is_asked() -> None:
    assert SLURM.inherited_variables(request()) == {"SBATCH_ACCOUNT"}
    assert SLURM.inherited_variables(request(account="a")) == frozenset()


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        ("Configuration data as of …\nMaxArraySize            = 1001\nMaxDBDMsgs = 20008\n", 1001),
        ("MaxArraySize=4\n", 4),
        ("MaxArraySize            = 0\n", 1),  # no arrays: run by run
        ("MaxArraySize=1\n", 1),
        ("SlurmctldHost = x\n", None),
        ("", None),
    ],
)
def test_how_many_runs_an_array_takes(said: str, runs: int | None) -> None:
    assert SLURM.parse_array_limit(said) == runs
    assert SLURM.array_limit_command() == ["scontrol", "show", "config"]


def test_steps_are_known_by_their_srun() -> None:
    said = (
        "StepId=142.0 UserId=0 State=RUNNING NodeList=node01 Name=bash SrunHost:Pid=vm.site:30814\n"
        "StepId=142.extern State=RUNNING NodeList=node01 SrunHost:Pid=(null):0\n"
    )
    adapter = Slurm()
    assert adapter.steps_command({"SLURM_JOB_ID": "142"}) == ["scontrol", "show", "step", "-o", "142"]
    assert adapter.parse_steps(said)["vm", 30814] == "142.0"
    assert adapter.terminate_steps_command(["142.0"]) == ["scancel", "--signal=TERM", "142.0"]


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("PartitionNodeLimit", True),
        ("PartitionTimeLimit", True),
        ("BadConstraints", True),
        ("DependencyNeverSatisfied", True),
        ("QOSMaxNodePerJob", True),
        ("QOSMaxGRESPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMinGRES", True),
        ("Resources", False),
        ("Priority", False),
        ("Dependency", False),
        ("ReqNodeNotAvail, UnavailableNodes:node01", False),
        ("QOSGrpNodeLimit", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("QOSMaxNodePerUserLimit", False),
        ("None", False),
    ],
)
def test_what_no_end_of_another_job_changes_is_known(reason: str, never: bool) -> None:
    status = SLURM.parse_status(["squeue"], f"7|PENDING|0|N/A|{reason}")["7"]
    assert status.never is never
    running = SLURM.parse_status(["squeue"], f"7|RUNNING|0|N/A|{reason}")["7"]
    assert running.never is False


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("7|100|PartitionTimeLimit\n", "job 7, PartitionTimeLimit: its time limit"),
        ("6|99|BadConstraints\n7|100|PartitionNodeLimit\n", "job 7, PartitionNodeLimit"),
        ("7|100|Priority\n", None),
        ("7|101|PartitionTimeLimit\n", None),  # of another session
        ("", None),
        ("squeue: error: Invalid user\n", None),
    ],
)
def test_an_allocation_that_is_waited_for_at_the_console_and_never_starts(said: str, why: str | None) -> None:
    found = SLURM.parse_pending(said, 100)
    assert found is None if why is None else found is not None and found.startswith(why)
