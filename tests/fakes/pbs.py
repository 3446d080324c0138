"""PBS as a stand-in: qsub, qstat, qselect, qdel, pbsnodes, and in jobs pbs_tmrsh; as OpenPBS 23.06.

Notes of the cluster that a test sets: ``queues``, ``array_limit``, ``history`` (False: ended jobs are unknown, and
``-x`` is refused with exit code 0), ``bad_json`` (True: a job of someone else spoils the JSON), ``interval`` (seconds
between the signals of qdel).
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping

from pbs_qsub import QUEUES, SERVER, qsub
from scheduler_daemon import Daemon, main
from scheduler_state import ENDED, MARK, PENDING, REMOTE, RUNNING, Cluster, Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_HISTORY = "PBS is not configured to maintain job history"


class PbsDaemon(Daemon):
    """The server, its scheduler, and the daemons of all hosts."""

    def environment(self, job: Job) -> Mapping[str, str]:
        per_host = int((re.search(r"mpiprocs=(\d+)", job.data["listed"].get("select", "")) or ["", "1"])[1])
        file = self.cluster.root / "spool" / f"{job.id}.nodes"
        file.write_text("".join(f"{host}\n" * per_host for host in job.hosts))
        found = {
            "PBS_JOBID": job.id, "PBS_JOBNAME": job.data["name"], "PBS_QUEUE": job.data["queue"],
            "PBS_ENVIRONMENT": "PBS_BATCH", "ENVIRONMENT": "BATCH", "PBS_NODEFILE": str(file), "PBS_NODENUM": "0",
            "PBS_TASKNUM": "1", "PBS_MOMPORT": "15003", "PBS_JOBCOOKIE": "0B2D", "PBS_JOBDIR": job.cwd,
            "NCPUS": str(job.slots), "OMP_NUM_THREADS": str(job.slots), "TMPDIR": "/tmp",
        }  # fmt: skip
        if job.data["index"] is not None:
            found |= {"PBS_ARRAY_INDEX": str(job.data["index"]), "PBS_ARRAY_ID": f"{job.data['number']}[].{SERVER}"}
        return found

    def ready(self, job: Job, jobs: list[Job]) -> bool:
        mates = [other for other in jobs if other.data["number"] == job.data["number"] and other.state == RUNNING]
        if job.data["at_once"] is not None and len(mates) >= job.data["at_once"]:
            return False
        return _depends(job, jobs) is True

    def tick(self, active: list[Job]) -> None:
        """A job whose dependency cannot be met is deleted without a word."""
        waiting = [job for job in active if job.state == PENDING and job.data["depend"]]
        everything = self.cluster.jobs() if waiting else []
        for job in waiting:
            if _depends(job, everything) is None:
                job.state, job.ended = ENDED, time.time()
                self.cluster.save(job)

    def _room(self, job: Job, jobs: list[Job]) -> list[str]:
        if not job.data["hosts"]:
            return super()._room(job, jobs)
        busy = {host for other in jobs if other.state == RUNNING for host in other.hosts}
        return [] if busy & {*job.data["hosts"]} else job.data["hosts"]

    def time_is_up(self, job: Job) -> None:
        now = time.time()
        wait = self.cluster.note("interval", 10.0)
        job.signals += [[now, signal.SIGTERM], [now + wait, signal.SIGKILL]]


def _depends(job: Job, jobs: list[Job]) -> bool | None:
    """Whether the dependencies are met; None if they cannot be."""
    met = True
    for part in filter(None, job.data["depend"].split(",")):
        kind, *ids = part.split(":")
        for id_ in ids:
            number = re.match(r"\d+", id_)
            targets = [one for one in jobs if number and str(one.data["number"]) == number[0]]
            if not targets:
                return None
            over = all(one.state == ENDED for one in targets)
            well = over and all(one.code == 0 for one in targets)
            if kind == "after":
                met &= any(one.state != PENDING for one in targets)
            elif over and ((kind == "afterok" and not well) or (kind == "afternotok" and well)):
                return None
            else:
                met &= over
    return met


def parents(jobs: list[Job]) -> dict[int, list[Job]]:
    """Number of each array → its elements."""
    found: dict[int, list[Job]] = {}
    for job in jobs:
        if job.data["index"] is not None:
            found.setdefault(job.data["number"], []).append(job)
    return found


def state(job: Job, mates: list[Job]) -> str:
    if job.state == PENDING:
        return "H" if job.held or job.data["depend"] else "Q"
    if job.state == RUNNING:
        return "R"
    return "F" if all(mate.state == ENDED for mate in mates) else "X"


def exit_status(job: Job) -> int | None:
    if job.code is None:
        return 1 if job.data["index"] is not None else None
    if job.timed_out:
        return -29
    if job.code < 0:
        return 128 - job.code if job.data["index"] is not None else 256 - job.code
    return job.code


def attributes(job: Job, mates: list[Job]) -> dict[str, Any]:
    """What ``qstat -f`` shows of a job or an element."""
    now, at = state(job, mates), "%a %b %d %H:%M:%S %Y"
    found: dict[str, Any] = {
        "Job_Name": job.data["name"], "Job_Owner": f"user@{SERVER}", "job_state": now, "queue": job.data["queue"],
        "server": SERVER, "ctime": time.strftime(at, time.localtime(job.submitted)), "Join_Path": job.data["join"],
        "Output_Path": f"{SERVER}:{job.data['out'] or job.out}", "Error_Path": f"{SERVER}:{job.data['out'] or job.out}",
        "Rerunable": "True" if job.data["rerun"] == "y" else "False",
    }  # fmt: skip
    for name, value in job.data["listed"].items():
        found[f"Resource_List.{name}"] = value
    if job.data["account"]:
        found["Account_Name"] = job.data["account"]
    if job.data["depend"] and job.state == PENDING:
        found["depend"] = job.data["depend"]
    if job.started:
        found["stime"] = time.strftime(at, time.localtime(job.started))
        found["exec_host"] = "+".join(f"{host}/0*{job.slots}" for host in job.hosts)
        gpus = f":ngpus={job.gpus}" if job.gpus else ""
        found["exec_vnode"] = "+".join(f"({host}:ncpus={job.slots}{gpus})" for host in job.hosts)
        found["comment"] = f"Job run at {time.strftime('%a %b %d at %H:%M', time.localtime(job.started))}"
    elif job.state == PENDING and not job.held:
        found["comment"] = "Not Running: Not enough free nodes available"
    found["substate"] = {PENDING: 10, RUNNING: 42}.get(job.state, 91 if job.cancelled else 93 if job.code else 92)
    found["Variable_List"] = {"PBS_O_HOME": "/home", **job.data["variables"]}
    if job.data["index"] is not None:
        found |= {"array_id": f"{job.data['number']}[].{SERVER}", "array_index": job.data["index"]}
    if job.state == ENDED and exit_status(job) is not None:
        found["Exit_status"] = exit_status(job)
    return found


def parent_attributes(mates: list[Job]) -> dict[str, Any]:
    began = any(job.state != PENDING for job in mates)
    over = all(job.state == ENDED for job in mates)
    found = attributes(mates[0], mates)
    for name in ("stime", "exec_host", "exec_vnode", "array_id", "array_index", "Exit_status", "comment"):
        found.pop(name, None)
    found |= {"job_state": "F" if over else "B" if began else "Q", "array": "True", "substate": 70}
    if over:
        found["Exit_status"] = 1 if any(exit_status(job) for job in mates) else 0
    return found


def qstat(cluster: Cluster, argv: list[str]) -> int:
    flags, form, ids, rest = set(), "", [], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "-F":
            form = rest.pop(0)
        elif word in ("-x", "-t", "-f", "-w", "-B", "-Q"):
            flags.add(word)
        elif word.startswith("-"):
            print(f"qstat: invalid option -- '{word[1:]}'", file=sys.stderr)
            return 2
        else:
            ids.append(word)
    if "-B" in flags:
        return _server(cluster, "-f" in flags)
    if "-Q" in flags:
        print("Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type")
        for name in cluster.note("queues", QUEUES):
            print(f"{name:<16}     0     0 yes yes     0     0     0     0     0     0 Exec")
        return 0
    if "-x" in flags and not cluster.note("history", True):
        print(f"qstat: {NO_HISTORY}", file=sys.stderr)
        listed, code = {}, 0
    else:
        listed, code = _asked(cluster, ids, flags)
    if form == "json":
        print(_json(listed, cluster.note("bad_json", False)))
    elif "-f" in flags:
        for id_, fields in listed.items():
            print(f"Job Id: {id_}")
            for name, value in fields.items():
                text = ",".join(f"{key}={one}" for key, one in value.items()) if isinstance(value, dict) else value
                print(f"    {name} = {text}")
            print()
    return code


def _server(cluster: Cluster, full: bool) -> int:
    if full:
        print(f"Server: {SERVER}\n    server_state = Active\n    max_array_size = {cluster.note('array_limit', 10000)}")
    else:
        print("Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n" + "---------------- " * 2)
        print(f"{SERVER} 0 0 0 0 0 0 0 0 Active")
    return 0


def _asked(cluster: Cluster, ids: list[str], flags: set[str]) -> tuple[dict[str, dict[str, Any]], int]:
    """Jobs by id, and the exit code of the last that there is not."""
    jobs, code = cluster.jobs(), 0
    arrays = parents(jobs)
    listed: dict[str, dict[str, Any]] = {}
    for id_ in ids or [job.id for job in jobs if job.data["index"] is None]:
        if not re.match(r"\d", id_):
            print(f"qstat: Unknown queue destination {id_}", file=sys.stderr)
            code = 170
            continue
        full = id_ if "." in id_ else f"{id_}.{SERVER}"
        number = int(re.match(r"\d+", full)[0])  # type: ignore[index]
        if "[]" in full and number in arrays:
            mates = arrays[number]
            found = {full: parent_attributes(mates)}
            if "-t" in flags:
                found |= {job.id: attributes(job, mates) for job in mates}
            over = found[full]["job_state"] == "F"
        else:
            job = next((job for job in jobs if job.id == full), None)
            if job is None:
                print(f"qstat: Unknown Job Id {full}", file=sys.stderr)
                code = 153
                continue
            found = {full: attributes(job, arrays.get(job.data["number"], [job]))}
            over = job.state == ENDED
        if over and not cluster.note("history", True):
            print(f"qstat: Unknown Job Id {full}", file=sys.stderr)
            code = 153
        elif over and "-x" not in flags:
            print(f"qstat: {full} Job has finished, use -x or -H to obtain historical job information", file=sys.stderr)
            code = 35
        else:
            listed |= found
    return listed, code


def _json(listed: dict[str, dict[str, Any]], bad: bool) -> str:
    """Values that look like numbers are bare, nothing but quotes is escaped, resources are nested."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f'"{key}":{text(one)}' for key, one in value.items()) + "}"
        if re.fullmatch(r"-?\d+(\.\d+)?([eE]\d+)?|nan|inf", str(value)) and not re.match(r"0\d", str(value)):
            return str(value)
        return '"' + str(value).replace('"', '\\"') + '"'

    jobs = {}
    for id_, fields in listed.items():
        nested: dict[str, Any] = {}
        for name, value in fields.items():
            group, dot, key = name.partition(".")
            if dot:
                nested.setdefault(group, {})[key] = value
            else:
                nested[name] = value
        jobs[id_] = {**nested, **({"Account_Name": r"q\x"} if bad else {})}
    head = f'"timestamp":{int(time.time())},"pbs_version":"23.06.06","pbs_server":"{SERVER}"'
    return "{" + head + (f',"Jobs":{text(jobs)}' if jobs else "") + "}"


def qselect(cluster: Cluster, argv: list[str]) -> int:
    wanted, rest = {}, list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-N", "-u", "-A", "-s"):
            wanted[word] = rest.pop(0)
        elif word != "-x":
            print(f"qselect: invalid option -- '{word[1:]}'", file=sys.stderr)
            return 2
        else:
            wanted[word] = ""
    if "-x" in wanted and not cluster.note("history", True):
        print(f"qselect: {NO_HISTORY}", file=sys.stderr)
        return 0
    for job in cluster.jobs():
        if job.data["name"] != wanted.get("-N", job.data["name"]) or (job.state == ENDED and "-x" not in wanted):
            continue
        if job.data["index"] in (None, 0):
            print(job.id if job.data["index"] is None else f"{job.data['number']}[].{SERVER}")
    return 0


def qdel(cluster: Cluster, argv: list[str]) -> int:
    code = 0
    for id_ in argv:
        match = re.fullmatch(r"(\d+)(?:\[(\d*)(?:-(\d+))?\])?(?:\.(\w+))?", id_)
        if not match or match[4] not in (None, SERVER):
            print(f"qdel: illegally formed job identifier: {id_}", file=sys.stderr)
            code = 1
            continue
        whole = "[" not in id_ or "[]" in id_
        span = range(0) if whole else range(int(match[2]), int(match[3] or match[2]) + 1)
        jobs = [
            job for job in cluster.jobs()
            if job.data["number"] == int(match[1]) and ("[" in id_) == (job.data["index"] is not None)
            and (whole or job.data["index"] in span)
        ]  # fmt: skip
        if not jobs:
            print(f"qdel: Unknown Job Id {id_}", file=sys.stderr)
            code = 153
        elif all(job.state == ENDED for job in jobs):
            print(f"qdel: Job has finished {id_}", file=sys.stderr)
            code = 35
        for job in jobs:
            cluster.cancel(job.id, signal.SIGTERM, signal.SIGKILL, spaced=cluster.note("interval", 10.0))
    return code


def pbsnodes(cluster: Cluster, argv: list[str]) -> int:
    if argv != ["-a", "-F", "json"]:
        print("usage:\tpbsnodes [-a] ...", file=sys.stderr)
        return 1
    nodes = {
        name: {
            "Mom": name, "state": "free", "pcpus": has["slots"],
            "resources_available": {
                "arch": "linux", "host": name, "mem": "32gb", "ncpus": has["slots"], "ngpus": has["gpus"],
            },
        }
        for name, has in cluster.hosts.items()
    }  # fmt: skip
    print(_json({}, False)[:-1] + ',"nodes":' + str(nodes).replace("'", '"') + "}")
    return 0


def pbs_tmrsh(cluster: Cluster, argv: list[str]) -> int:
    """A task on a host of the job: PBS's own variables, at home, no input; no signal is handed on."""
    host, *command = argv
    job = cluster.job(os.environ.get("PBS_JOBID", ""))
    if job is None or host not in job.hosts:
        print(f'pbs_tmrsh: host "{host}" is not a node in job <{os.environ.get("PBS_JOBID", "")}>', file=sys.stderr)
        return 255
    own = ("PBS_", "NCPUS", "OMP_NUM_THREADS", "HOME", "ENVIRONMENT", "TMPDIR")
    env = {name: value for name, value in PbsDaemon(cluster).environment(job).items() if name.startswith(own)}
    env |= {"PATH": "/bin:/usr/bin", "HOME": job.cwd, "HOSTNAME": host, MARK: os.environ[MARK], REMOTE: host}
    import subprocess

    try:
        with open(job.out or os.devnull, "ab") as out:  # what tasks print goes to the job's own output file
            done = subprocess.run(
                command, env=env, cwd=job.cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 254
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


COMMANDS = {
    "qsub": qsub, "qstat": qstat, "qselect": qselect, "qdel": qdel, "pbsnodes": pbsnodes, "pbs_tmrsh": pbs_tmrsh,
}  # fmt: skip


def run() -> None:
    main(COMMANDS, PbsDaemon)
