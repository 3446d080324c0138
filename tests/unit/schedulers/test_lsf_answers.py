"""What LSF prints is understood in every form, and what is not known is never taken for an end."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from hpc_hydra.errors import SchedulerError
from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.schedulers.lsf.adapter import Lsf
from tests.unit.schedulers.specs import request, spec

LSF = Lsf()
JSON, DELIMITED, PLAIN, LONG, HISTORY = LSF.status_commands(["200", "201[3]"])


def test_one_question_for_all_jobs() -> None:
    assert all(command[-2:] == ["200", "201"] for command in LSF.status_commands(["200", "201[3]", "201[4]"]))


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("Job <123> is submitted to queue <normal>.\n", "123"),
        ("Job <123> is submitted to default queue <normal>.\n", "123"),
        ("Job is submitted to <proj> project.\nJob <124> is submitted to default queue <normal>.\n", "124"),
        ("Welcome <user>\n  Job <7> is submitted to queue <q>.\nbye", "7"),
    ],
)
def test_the_id_in_what_bsub_says(text: str, job: str) -> None:
    assert LSF.parse_job_ids(text, spec(request(scheduler="lsf"))) == (job,)


@pytest.mark.parametrize("text", ["", "nope: No such queue. Job not submitted."])
def test_no_id_is_an_error_with_what_was_said(text: str) -> None:
    with pytest.raises(SchedulerError, match="no job id"):
        LSF.parse_job_ids(text, spec(request(scheduler="lsf")))


def test_json() -> None:
    text = """site's banner
    {"COMMAND":"bjobs","JOBS":4,"RECORDS":[
     {"JOBID":"200","JOBINDEX":"0","STAT":"RUN","EXIT_CODE":"","START_TIME":"Dec 28 19:56","PEND_REASON":""},
     {"JOBID":"201","JOBINDEX":"3","STAT":"EXIT","EXIT_CODE":"137","EXIT_REASON":""},
     {"JOBID":"202","JOBINDEX":"0","STAT":"PEND","EXIT_CODE":"","PEND_REASON":"Dependency not satisfied;"},
     {"JOBID":"203","JOBINDEX":"1","STAT":"EXIT","EXIT_CODE":"","EXIT_REASON":"TERM_OWNER: job killed by owner"},
     {"JOBID":"204","JOBINDEX":"0","STAT":"EXIT","EXIT_CODE":"140","EXIT_REASON":"TERM_RUNLIMIT: ..."},
     {"JOBID":"205","JOBINDEX":"0","STAT":"DONE","EXIT_CODE":""},
     {"JOBID":"99999","ERROR":"Job <99999> is not found"}]}"""
    said = LSF.parse_status(JSON, text)
    assert set(said) == {"200", "201[3]", "202", "203[1]", "204", "205"}
    assert said["200"].state is State.RUNNING and said["200"].start is not None
    assert (said["201[3]"].state, said["201[3]"].exit_code, said["201[3]"].signal) == (State.FAILED, 137, 9)
    assert (said["202"].state, said["202"].reason) == (State.PENDING, "Dependency not satisfied;")
    assert said["203[1]"].state is State.CANCELLED
    assert said["204"].state is State.TIMEOUT
    assert (said["205"].state, said["205"].exit_code) == (State.COMPLETED, 0)


@pytest.mark.parametrize("text", ["LSF is down. Please wait ...", "[1, 2]", "{"])
def test_invalid_json_is_no_answer(text: str) -> None:
    with pytest.raises(SchedulerError):
        LSF.parse_status(JSON, text)


def test_no_jobs_in_json() -> None:
    assert LSF.parse_status(JSON, '{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}') == {}
    assert LSF.parse_status(JSON, "") == {}


def test_lines_with_delimiters() -> None:
    said = LSF.parse_status(DELIMITED, "banner\n200^0^RUN^-\n201^2^EXIT^1\n202^0^PEND^-\n203^0^DONE^-\n204^0^EXIT^-\n")
    assert {job: (status.state, status.exit_code) for job, status in said.items()} == {
        "200": (State.RUNNING, None), "201[2]": (State.FAILED, 1), "202": (State.PENDING, None),
        "203": (State.COMPLETED, 0), "204": (State.FAILED, None),
    }  # fmt: skip


def test_the_plain_table() -> None:
    text = """JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME
17      user    RUN   normal     node01      node02:node02 natural    Nov 28 00:00
29      user    PEND  normal     node01         -        sleep 0    Nov 28 00:00
3       user    DONE  normal     node01      node03      arr[2]     Nov 27 23:58
4[7]    user    EXIT  normal     node01      node01      arr[7]     Nov 27 23:58
                                             node02
"""
    said = LSF.parse_status(PLAIN, text)
    assert {job: status.state for job, status in said.items()} == {
        "17": State.RUNNING, "29": State.PENDING, "3[2]": State.COMPLETED, "4[7]": State.FAILED,
    }  # fmt: skip
    assert said["4[7]"].exit_code is None  # another command tells


LINES = """
Job <1>, Job Name <envjob>, User <user>, Project <default>, Status <DONE>, Queu
                     e <normal>, Command <sleep 2>
Fri Nov 27 23:58:28: Done successfully. The CPU time used is 0.0 seconds.

Job <3[2]>, Job Name <arr[2]>, User <user>
Sat Nov 28 00:00:11: Exited with exit co
                     de 130. The CPU time used is 0.0 seconds.

Job <4>, User <user>
Sat Nov 28 00:01:02: Exited by signal 9. The CPU time used is 0.0 seconds.
Sat Nov 28 00:01:02: Completed <exit>; TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.

Job <5>, User <user>
Sat Nov 28 00:01:02: Exited; job has been forced to exit with exit code 143; TERM_OWN
                     ER: job killed by owner.

Job <6>, User <user>
Sat Nov 28 00:01:02: Exited with exit code 99. The CPU time used is 0.0 seconds.
Sat Nov 28 00:02:02: Started 1 Task(s) on Host(s) <node01>;

Job <8>, User <user>
Sat Nov 28 00:01:02: Signal <KILL> requested by user or admini
                     strator <user>;
Sat Nov 28 00:01:02: Exited by signal 2. The CPU time used is 0.0 seconds.

Job <9>, User <user>
Sat Nov 28 00:01:02: Signal <KILL> requested by user or administrator <user>;
Sat Nov 28 00:01:02: Signal <REQUEUE_PEND> requeued by user or administrator <user>;
Sat Nov 28 00:02:02: Started 1 Task(s) on Host(s) <node01>;
Sat Nov 28 00:03:02: Exited with exit code 3. The CPU time used is 0.0 seconds.

Job <7>, User <user>, Status <RUN>
Sat Nov 28 00:02:02: Started 1 Task(s) on Host(s) <node01>;
"""


@pytest.mark.parametrize("command", [LONG, HISTORY])
def test_paragraphs_cut_at_any_column(command: list[str]) -> None:
    said = LSF.parse_status(command, LINES)
    assert set(said) == {"1", "3[2]", "4", "5", "8", "9"}
    assert said["1"] == JobStatus(State.COMPLETED, "DONE", 0)
    assert (said["3[2]"].exit_code, said["3[2]"].signal) == (130, 2)
    assert (said["4"].exit_code, said["4"].signal, said["4"].reason) == (137, 9, "TERM_MEMLIMIT")
    assert said["5"].state is said["8"].state is State.CANCELLED
    assert said["9"].state is State.FAILED


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PEND", State.PENDING), ("PSUSP", State.PENDING), ("WAIT", State.PENDING), ("PROV", State.PENDING),
        ("RUN", State.RUNNING), ("USUSP", State.RUNNING), ("SSUSP", State.RUNNING), ("UNKWN", State.RUNNING),
        ("ZOMBI", State.RUNNING), ("DONE", State.COMPLETED), ("EXIT", State.FAILED), ("NEWWORD", State.UNKNOWN),
    ],
)  # fmt: skip
def test_states_of_lsf_are_read(word: str, state: State) -> None:
    assert LSF.parse_status(DELIMITED, f"1^0^{word}^-\n")["1"].state is state


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nope: No such queue. Job not submitted.", "permanent"),
        ("Bad argument for option -n. Job not submitted.", "permanent"),
        ("999: No matching job found. Job not submitted.", "permanent"),
        ("LSF is down. Please wait ...", "transient"),
        ("Failed in an LSF library call: Connection reset by peer. Job not submitted.", "transient"),
        ("batch system daemon not responding ... still trying", "transient"),
        ("User <x>: Pending job threshold reached. Job not submitted.", "limit"),
        ("User's pending job slot limit reached. Job not submitted.", "limit"),
        ("Job array index too large. Job not submitted.", "array"),
    ],
)
def test_whether_asking_again_is_any_use(text: str, kind: str) -> None:
    assert LSF.classify(text) == kind


def test_unknown_jobs() -> None:
    assert LSF.is_unknown_job("Job <99999> is not found\nJob <3[4]> is not found\n")
    assert not LSF.is_unknown_job("Job <99999> is not found\nLSF is down. Please wait ...")
    assert not LSF.is_unknown_job("")


def test_elements_are_cancelled_by_one_command() -> None:
    assert LSF.cancel_command(["12[1]", "12[2]", "12[3]", "12[7]", "9"]) == ["bkill", "12[1-3,7]", "9"]
    assert LSF.terminate_command(["12[1]"]) == ["bkill", "-s", "TERM", "12[1]"]


def test_jobs_found_again_by_their_description() -> None:
    job = spec(request(scheduler="lsf"), runs=(4, 5))
    lines = f"7^0^other\n12^2^mine ^ yours {job.tag}\n12^1^mine ^ yours {job.tag}\n13^0^{job.tag}x\n"
    assert LSF.parse_found(lines, job, spec().log) == ("12[1]", "12[2]")
    assert LSF.parse_found("7^0^other\n", job, spec().log) == ()


@pytest.mark.parametrize(("text", "size"), [("    MAX_JOB_ARRAY_SIZE = 5000\n", 5000), ("lsb.params ...", 1000)])
def test_the_size_of_arrays(text: str, size: int) -> None:
    assert LSF.parse_array_limit(text) == size


def test_a_start_without_a_year_is_the_nearest() -> None:
    def start(written: str) -> float | None:
        record = {"JOBID": "7", "JOBINDEX": "0", "STAT": "RUN", "START_TIME": written}
        return LSF.parse_status(JSON, json.dumps({"RECORDS": [record]}))["7"].start

    for ahead in (-86400 * 40, 0, 86400 * 40):
        then = datetime.fromtimestamp(time.time() + ahead).replace(second=0, microsecond=0)
        assert start(f"{then:%b %d %H:%M} L") == then.timestamp()
    assert start("-") is None


@pytest.mark.parametrize(
    ("said", "held"),
    [("RUN\n", True), ("SSUSP\n", True), ("EXIT\n", False), ("DONE\n", False), ("Usage: bjobs [-h] [-V] …\n", None),
     ("", None), ("welcome\n", None)],
)  # fmt: skip
def test_only_a_state_says_whether_an_allocation_lives(said: str, held: bool | None) -> None:
    env = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4", "LSB_HOSTS": "n1 n1 n1 n1"}
    if held is None:
        with pytest.raises(SchedulerError, match="printed no state of job 7"):
            LSF.parse_allocation(said, env)
    else:
        assert (LSF.parse_allocation(said, env) is not None) is held


ELEMENTS = ("12[1]", "12[2]")


@pytest.mark.parametrize(
    ("there", "lost"),
    [(ELEMENTS, []), ((), []), (("12",), [*ELEMENTS]), (("12[1]",), ["12[2]"]), (("3",), [])],
    ids=["all", "nothing yet", "one job", "a part", "others"],
)
def test_an_array_is_looked_at_once_it_was_submitted(there: tuple[str, ...], lost: list[str]) -> None:
    said = dict.fromkeys(there, JobStatus(State.PENDING))
    assert LSF.lost_elements(ELEMENTS, said) == lost
