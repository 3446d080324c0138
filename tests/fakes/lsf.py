"""LSF as a stand-in, standard and CSM: bsub, bjobs, bkill, bhist, bparams, lsid, and in jobs blaunch and jsrun.

Notes of the cluster that a test sets: ``flavour`` (standard, csm), ``queues``, ``array_limit``, ``json`` and ``fields``
(False: a bjobs without -json, without -o), ``sequential`` (LSB_USE_SEQUENTIAL_SIGNAL), ``interval`` (seconds between
the signals of bkill).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from lsf_bsub import TERM, bsub, jobs_named
from lsf_launch import blaunch, jsrun
from scheduler_daemon import Daemon, main
from scheduler_state import ENDED, PENDING, RUNNING, Cluster, Job

FIELDS = (
    "jobid", "jobindex", "stat", "exit_code", "exit_reason", "pend_reason", "start_time", "exec_host",
    "job_description", "job_name", "queue",
)  # fmt: skip


def environment(cluster: Cluster, job: Job) -> dict[str, str]:
    """What LSF sets in a batch script."""
    csm = cluster.note("flavour", "standard") == "csm"
    slots = {**({"batch1": 1} if csm else {}), **dict.fromkeys(job.hosts, job.slots)}
    each = [host for host, number in slots.items() for _ in range(number)]
    file = cluster.root / "lsbatch" / f"{job.data['number']}.{job.data['index']}.hostfile"
    file.write_text("".join(f"{host}\n" for host in each))
    found = {
        "LSB_JOBID": str(job.data["number"]),
        "LSB_JOBINDEX": str(job.data["index"]),
        "LSB_JOBNAME": job.data["name"],
        "LSB_QUEUE": job.data["queue"],
        "LSB_SUB_HOST": "login1",
        "LSB_MCPU_HOSTS": "".join(f"{host} {number} " for host, number in slots.items()),
        "LSB_DJOB_HOSTFILE": str(file),
        "LSB_DJOB_NUMPROC": str(len(each)),
        "LSB_EXIT_PRE_ABORT": "99",
        "LS_SUBCWD": f"{job.cwd}/",
    }
    if len(" ".join(each)) <= 4096:
        found["LSB_HOSTS"] = " ".join(each)
    if csm:
        found["CSM_ALLOCATION_ID"] = str(34000 + job.data["number"])
    elif job.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(job.gpus)))
    return found


class LsfDaemon(Daemon):
    """mbatchd and the sbatchd of all hosts."""

    def environment(self, job: Job) -> Mapping[str, str]:
        return environment(self.cluster, job)

    def ready(self, job: Job, jobs: list[Job]) -> bool:
        mates = [other for other in jobs if other.data["number"] == job.data["number"] and other.state == RUNNING]
        if job.data["at_once"] and len(mates) >= job.data["at_once"]:
            return False

        def holds(match: re.Match[str]) -> str:
            meant = jobs_named(jobs, match[2])
            over = [other.state == ENDED for other in meant]
            well = [other.state == ENDED and other.code == 0 for other in meant]
            bad = [other.state == ENDED and other.code != 0 for other in meant]
            began = [other.state != PENDING for other in meant]
            return str(all({"done": well, "ended": over, "exit": bad, "started": began}[match[1]]))

        text = TERM.sub(holds, job.data["after"]).replace("&&", " and ").replace("||", " or ").replace("!", " not ")
        return not text.strip() or bool(eval(text, {}, {}))

    def time_is_up(self, job: Job) -> None:
        now = time.time()
        job.signals.append([now, signal.SIGUSR2])
        job.signals += [[now + 10 * self.cluster.minute + 10 * i, n] for i, n in enumerate((2, 15, 9))]

    def tick(self, active: list[Job]) -> None:
        for job in active:
            warning = job.data["warning"]
            if warning and job.state == RUNNING and job.limit and time.time() > job.started + job.limit - warning[1]:
                job.data["warning"] = None
                self.cluster.save(job)
                self.cluster.signal(job.id, warning[0])

    def over(self, job: Job) -> None:
        """The report, with what the job printed, is appended to the file of -o; one of -Q's exit codes is requeued."""
        if str(job.code) in job.data["asked"].get("Q", "").split() and not job.cancelled:
            job.state, job.started, job.ended, job.wait, job.hosts = PENDING, None, None, None, []
            job.timed_out, job.signals, job.pid = False, [], None
            job.data["warning"] = job.data["first_warning"]
            self.cluster.save(job)
            return
        if not job.data["report"]:
            return
        path = job.data["report"].replace("%J", str(job.data["number"])).replace("%I", str(job.data["index"]))
        how = "Successfully completed." if job.code == 0 else f"{_ended(job)}."
        printed = Path(job.out or os.devnull).read_text(errors="replace")
        with open(path, "a") as file:
            file.write(
                f"Sender: LSF System\nSubject: Job {job.id}: <{job.data['name']}> in cluster <fake>\n\n{how}\n\n"
            )
            file.write(f"The output (if any) follows:\n\n{printed}\n")


def stat(job: Job) -> str:
    if job.state == PENDING:
        return "PSUSP" if job.held else "PEND"
    return "RUN" if job.state == RUNNING else "DONE" if job.code == 0 else "EXIT"


def exit_code(job: Job) -> int | None:
    """As bjobs tells it: 128+n for signal n; none for a job that never ran, and for one that ended well."""
    if job.state != ENDED or not job.code:
        return None
    return job.code if job.code > 0 else 128 - job.code


def reason(job: Job) -> str:
    if job.state != ENDED or job.code == 0:
        return ""
    if job.cancelled:
        return "TERM_OWNER: job killed by owner"
    return "TERM_RUNLIMIT: job killed after reaching LSF run time limit" if job.timed_out else ""


def _fields(job: Job, empty: str) -> dict[str, str]:
    started = time.strftime("%b %d %H:%M", time.localtime(job.started)) if job.started else ""
    found = {
        "jobid": str(job.data["number"]),
        "jobindex": str(job.data["index"]),
        "stat": stat(job),
        "exit_code": str(exit_code(job) or ""),
        "exit_reason": reason(job),
        "pend_reason": "New job is waiting for scheduling;" if job.state == PENDING else "",
        "start_time": started,
        "exec_host": ":".join(f"{job.slots}*{host}" for host in job.hosts),
        "job_description": job.data["description"],
        "job_name": job.data["name"],
        "queue": job.data["queue"],
    }
    return {name: value or empty for name, value in found.items()}


def _asked(cluster: Cluster, ids: list[str]) -> tuple[list[Job], list[str]]:
    """The jobs of these ids (``12``, ``12[1-3,7]``), and the ids that there are not."""
    jobs, missing = [], []
    for text in ids:
        job, _, indices = text.partition("[")
        wanted: set[int] = set()
        for part in filter(None, indices.rstrip("]").split(",")):
            low, _, high = part.partition("-")
            wanted |= set(range(int(low), int(high or low) + 1))
        found = [
            one
            for one in cluster.jobs()
            if str(one.data["number"]) == job and (not wanted or one.data["index"] in wanted)
        ]
        jobs += found
        missing += [] if found else [text]
    return jobs, missing


def bjobs(cluster: Cluster, argv: list[str]) -> int:
    flags, form, ids, rest = set(), None, [], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "-o" and cluster.note("fields", True):
            form = rest.pop(0)
        elif word in ("-a", "-l", "-w", "-noheader", "-UF") or (word == "-json" and cluster.note("json", True)):
            flags.add(word)
        elif word.startswith("-"):
            print(f"bjobs: illegal option -- {word[1:]}\nUsage: bjobs [-h] [-V] ...", file=sys.stderr)
            return 255
        else:
            ids.append(word)
    if "-json" in flags and (form is None or "-noheader" in flags):
        print("-json can only be used with -o, and not with -noheader.", file=sys.stderr)
        return 255
    names, delimiter = _format(form)
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        print(f"{unknown[0]}: unknown field name.", file=sys.stderr)
        return 255
    jobs, missing = _asked(cluster, ids) if ids else (cluster.jobs(*(() if "-a" in flags else (PENDING, RUNNING))), [])
    if "-json" in flags:
        records = [{name.upper(): _fields(job, "")[name] for name in names} for job in jobs]
        records += [{"JOBID": job, "ERROR": f"Job <{job}> is not found"} for job in missing]
        print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))
    else:
        for job in missing:
            print(f"Job <{job}> is not found", file=sys.stderr)
        _print(jobs, flags, names, delimiter)
    if not jobs and not ids:
        print("No unfinished job found" if "-a" not in flags else "No job found", file=sys.stderr)
    return 255 if missing else 0


def _format(form: str | None) -> tuple[list[str], str]:
    if form is None:
        return [], " "
    match = re.fullmatch(r"(.*?)\s*(?:delimiter='(.)')?", form)
    assert match
    return [name.partition(":")[0].lower() for name in match[1].split()], match[2] or " "


def _print(jobs: list[Job], flags: set[str], names: list[str], delimiter: str) -> None:
    if "-l" in flags:
        for job in jobs:
            print(_paragraph(job))
        return
    if names:
        for job in jobs:
            print(delimiter.join(_fields(job, "-")[name] for name in names))
        return
    if jobs:
        print("JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME")
    for job in jobs:
        host = ":".join(f"{job.slots}*{name}" for name in job.hosts) or "   -    "
        row = f"{job.data['number']:<7} user    {stat(job):<5} {job.data['queue']:<10} login1      {host:<11}"
        print(f"{row} {job.data['name']:<10} {time.strftime('%b %d %H:%M', time.localtime(job.submitted))}")


def _ended(job: Job) -> str:
    code = job.code
    if code is None:
        return "Exited"
    return f"Exited with exit code {code}" if code > 0 else f"Exited by signal {-code}"


def _paragraph(job: Job) -> str:
    """Lines of ``bjobs -l`` and ``bhist -l``: cut at the 80th column, wherever that is."""
    at = time.strftime("%a %b %d %H:%M:%S", time.localtime(job.ended or job.submitted))
    asked = f"Status <{stat(job)}>, Queue <{job.data['queue']}>, Command <{job.data['command']}>"
    lines = [
        f"Job <{job.id}>, Job Name <{job.data['name']}>, User <user>, Project <default>, {asked}",
        f"{at}: Submitted from host <login1>, CWD <{job.cwd}>;",
    ]
    if job.started:
        lines.append(f"{at}: Started {job.slots} Task(s) on Host(s) {' '.join(f'<{host}>' for host in job.hosts)};")
    if job.state == ENDED:
        lines.append(
            f"{at}: {'Done successfully' if job.code == 0 else _ended(job)}. The CPU time used is 0.0 seconds."
        )
        if reason(job):
            lines.append(f"{at}: Completed <exit>; {reason(job)}.")
    cut = []
    for line in lines:
        pieces = [line[:80], *textwrap.wrap(line[80:], 59, drop_whitespace=False, break_on_hyphens=False)]
        cut += [pieces[0], *(f"{'':21}{piece}" for piece in pieces[1:])]
    return "\n" + "\n".join(cut) + "\n"


def bhist(cluster: Cluster, argv: list[str]) -> int:
    ids, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "-n":
            rest.pop(0)
        elif word in ("-l", "-a", "-w", "-UF"):
            continue
        elif word.startswith("-"):
            print(f"bhist: illegal option -- {word[1:]}", file=sys.stderr)
            return 255
        else:
            ids.append(word)
    numbers = {text.partition("[")[0] for text in ids}
    remembered = [job for job in _history(cluster) if str(job.data["number"]) in numbers]
    for job in remembered:
        print(_paragraph(job))
    if not remembered:
        print("No matching job found", file=sys.stderr)
        return 255
    return 0


def _history(cluster: Cluster) -> list[Job]:
    """Also of jobs that bjobs has forgotten."""
    return [*cluster.forgotten(), *cluster.jobs()]


def bkill(cluster: Cluster, argv: list[str]) -> int:
    number, ids, rest = None, [], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "-s":
            name = rest.pop(0)
            number = int(name) if name.isdigit() else getattr(signal, "SIG" + name.removeprefix("SIG"), None)
            if number is None:
                print(f"{name}: Bad signal value", file=sys.stderr)
                return 255
        elif word.startswith("-"):
            print(f"bkill: illegal option -- {word[1:]}", file=sys.stderr)
            return 255
        else:
            ids.append(word)
    jobs, missing = _asked(cluster, ids)
    bad = len(missing)
    for text in missing:
        print(f"Job <{text}>: No matching job found", file=sys.stderr)
    for job in jobs:
        if job.state == ENDED:
            print(f"Job <{job.id}>: Job has already finished", file=sys.stderr)
            bad += 1
        elif number is not None and job.state == PENDING and number != signal.SIGKILL:
            print(f"Job <{job.id}>: Job has not started yet", file=sys.stderr)
            bad += 1
        elif number is not None and job.state == RUNNING:
            cluster.signal(job.id, int(number))
            print(f"Job <{job.id}> is being signaled")
        else:
            parallel = job.nodes * job.slots > 1 and not cluster.note("sequential", False)
            numbers = (signal.SIGKILL,) if parallel else (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            cluster.cancel(job.id, *numbers, spaced=cluster.note("interval", 10.0))
            print(f"Job <{job.id}> is being terminated")
    return 255 if bad else 0


def lsid(cluster: Cluster, argv: list[str]) -> int:
    print("IBM Spectrum LSF Standard 10.1.0.12, Jun 10 2022\n\nMy cluster name is fake\nMy master name is login1")
    return 0


def bparams(cluster: Cluster, argv: list[str]) -> int:
    print(f"lsb.params configuration at ...\n    MAX_JOB_ARRAY_SIZE = {cluster.note('array_limit', 1000)}")
    return 0


COMMANDS = {
    "bsub": bsub, "bjobs": bjobs, "bkill": bkill, "bhist": bhist, "bparams": bparams, "lsid": lsid,
    "blaunch": blaunch, "jsrun": jsrun,
}  # fmt: skip


def run() -> None:
    main(COMMANDS, LsfDaemon)
