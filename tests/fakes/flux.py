"""A stand-in for `flux` (0.88) that runs jobs as processes of this machine, in files below one directory.

It knows batch, submit, run, jobs, job, cancel, exec, hostlist, getattr, resource, queue, uptime and version, and
refuses what the real ones refuse. All nodes have this machine's name, as those of `flux start --test-size=N`. A
test makes `flux batch` and the like misbehave by their two words. Must not know: hpc_hydra.
"""

from __future__ import annotations

import json
import locale
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flux_options import Asked, Refused, batch, check, copies, environment, filled, for_copy, minutes, parse, warning
from scheduler_daemon import Daemon, main
from scheduler_state import ENDED, PENDING, REMOTE, RUNNING, Cluster, Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODULE = Path(__file__)
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
OUTER = ("FLUX_JOB_", "FLUX_TASK_", "FLUX_KVS_NAMESPACE", "PMI_", "CUDA_")  # of the job around a submission
NAMES = {PENDING: "SCHED", RUNNING: "RUN"}


def f58(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 58)
        text = ALPHABET[digit] + text
    return f"f{text or '1'}"


def shown(id: str) -> str:
    """An id as the commands print it: with ƒ where the locale has it and nobody forbids it."""
    ascii_only = os.environ.get("FLUX_F58_FORCE_ASCII") or "utf" not in locale.getpreferredencoding().lower()
    return id if ascii_only else "ƒ" + id[1:]


def known(text: str) -> str:
    return "f" + text[1:] if text[:1] in "ƒf" else text


def instance(cluster: Cluster) -> Job | None:
    """The batch job whose instance is asked; None: the system's."""
    id = os.environ.get("FLUX_URI", "").rpartition("#")[2]
    return cluster.job(id) if id else None


# submission


def submit(cluster: Cluster, argv: list[str]) -> int:
    asked = parse("submit", argv)
    which = asked.text("cc") or asked.text("bcc")
    code = 0
    for copy in copies(which) if which else [None]:
        mine = asked if copy is None else for_copy(asked, copy)
        env = {} if copy is None or asked.text("bcc") else {"FLUX_JOB_CC": str(copy)}
        try:
            check(mine)
            print(shown(queue(cluster, mine, env=env).id), flush=True)
        except Refused as error:
            if copy is None or error.code != 1:
                raise
            print(f"cc={copy}: {error.text}", file=sys.stderr)
            code = 1
    return code


def flux_batch(cluster: Cluster, argv: list[str]) -> int:
    asked, text = batch(argv)
    check(asked)
    if "dry-run" in asked.options:
        print(json.dumps({"tasks": [{"command": asked.words}], "attributes": {"system": {"job": {}}}}))
        return 0
    job = queue(cluster, asked, script=text)
    if "quiet" not in asked.options:
        print(shown(job.id))
    return 0


def alloc(cluster: Cluster, argv: list[str]) -> int:
    """An instance that runs a command with the streams of this process, or its terminal."""
    asked = parse("batch", argv)
    check(asked)
    asked.words = ["alloc", *asked.words]
    return foreground(cluster, queue(cluster, asked, script='#!/bin/sh\nexec "$@"\n', foreground=True))


def run(cluster: Cluster, argv: list[str]) -> int:
    asked = parse("run", argv)
    check(asked)
    if "dry-run" in asked.options:
        print(json.dumps({"tasks": [{"command": asked.words}]}))
        return 0
    inside = instance(cluster)
    if inside is not None:
        return run_inside(inside, asked)
    return foreground(cluster, queue(cluster, asked, foreground=True))


def foreground(cluster: Cluster, job: Job) -> int:
    """Run a job of this process; returns its exit code."""
    code = cluster.run_here(job, lambda _, now: Flux(cluster).environment(now))
    now = cluster.job(job.id)
    if code:
        note = (now.data.get("exception") if now else None) or f"task(s) exited with exit code {code}"
        print(f"flux-job: {note}", file=sys.stderr)
    return 1 if now and now.wait is None else code


def run_inside(job: Job, asked: Asked) -> int:
    """A job of the batch job's own instance: its tasks are children of this process."""
    nodes, tasks, cores, gpus = size(asked)
    per_node = -(-tasks // nodes)
    exclusive = "exclusive" in asked.options or asked.number("ntasks") is None
    whole = job.data["gpus"]
    if nodes > job.nodes or cores * per_node > job.slots or gpus * per_node > whole:
        print(f"job.exception type=alloc severity=0 unsatisfiable request: need {nodes} node(s), only {job.nodes} "
              "eligible", file=sys.stderr)  # fmt: skip
        return 1
    env = environment(asked, {name: value for name, value in os.environ.items() if not name.startswith(OUTER)})
    cwd = asked.text("cwd") or str(Path.cwd())
    words = {
        "id": shown(f58(time.time_ns() >> 16)), "words": asked.words, "nodes": nodes, "tasks": tasks,
        "gpus": whole if exclusive else gpus * per_node, "shell": asked.shell, "cwd": cwd,
        "label": "label-io" in asked.options,
    }  # fmt: skip
    import flux_tasks

    code = flux_tasks.run(words, {**env, "FLUX_JOB_ID_PATH": f"/{job.id}/{words['id']}"})
    if code:
        print(f"flux-job: task(s) exited with exit code {code}", file=sys.stderr)
    return code


def size(asked: Asked) -> tuple[int, int, int, int]:
    """Nodes, tasks or slots, cores and GPUs of each."""
    nodes = asked.number("nodes") or 1
    tasks = asked.number("nslots") or asked.number("ntasks") or nodes
    cores = asked.number("cores-per-slot") or asked.number("cores-per-task") or 1
    return nodes, tasks, cores, asked.number("gpus-per-slot") or asked.number("gpus-per-task") or 0


def queue(
    cluster: Cluster, asked: Asked, *, script: str | None = None, foreground: bool = False, env: Mapping[str, str] = {}
) -> Job:
    """Put one job into the queue. Raises `Refused` as the instance does."""
    if instance(cluster) is not None:
        raise Refused("the stand-in has no queue in a job's own instance, which ends with the job's script")
    nodes, tasks, cores, gpus = size(asked)
    per_node = -(-tasks // nodes)
    waits = dependencies(cluster, asked)
    queues = cluster.note("queues")
    name = asked.text("queue")
    if name is not None and name not in (queues or []):
        raise Refused(f"Invalid queue '{name}' specified" if queues else f"[Errno 22] '{name}' is not a valid queue")
    limit = minutes(asked.text("time-limit") or "0")
    if (most := cluster.note("max-jobs")) is not None and len(cluster.jobs(PENDING, RUNNING)) >= most:
        raise Refused(f"[Errno 22] total jobs active {most} exceeds max-active-jobs limit")
    if limit > 60 * (longest := cluster.note("max-minutes", 10**9)):
        raise Refused(f"requested duration ({limit:g}s) exceeds policy limit of {longest}m")
    id = f58((1 << 44) + (cluster.next_number() << 24))
    base = {n: v for n, v in os.environ.items() if not n.startswith(OUTER) and n != REMOTE}
    ascii_id = id if base.get("FLUX_F58_FORCE_ASCII") else shown(id)
    values = {"id": ascii_id, "jobid": ascii_id, "id.f58plain": id, "id.f58": ascii_id}
    words, is_instance = [filled(word, values) for word in asked.words], script is not None
    if script is not None:
        copy = cluster.root / f"script-{id}"
        copy.write_text(script)
        copy.chmod(0o700)
        words[:1] = [str(copy)]
    elif words[:2] == ["flux", "broker"] and asked.shell.get("per-resource.type") == "node":
        is_instance, words = True, [word for word in words[2:] if not word.startswith("-")]
    cwd = asked.text("cwd") or str(Path.cwd())
    out = asked.text("output") or (f"flux-{ascii_id}.out" if script is not None else None)
    out, err = ((str(Path(cwd, filled(t, values))) if t else None) for t in (out, asked.text("error")))
    whole = min(cluster.hosts.values(), key=lambda host: host["slots"])
    exclusive = "exclusive" in asked.options or (asked.number("nslots") or asked.number("ntasks")) is None
    held = whole["slots"] if exclusive else cores * per_node
    data: dict[str, Any] = {
        "name": asked.text("job-name") or Path(words[0]).name, "instance": is_instance, "tasks": tasks,
        "gpus": whole["gpus"] if exclusive else gpus * per_node, "dependencies": waits, "queue": name,
        "attributes": asked.list("setattr"), "signal": asked.text("signal"), "ntasks": nodes if is_instance else tasks,
    }  # fmt: skip
    if not is_instance:
        told = {"id": ascii_id, "words": words, "nodes": nodes, "tasks": tasks, "gpus": data["gpus"],
                "shell": asked.shell, "cwd": cwd, "label": "label-io" in asked.options}  # fmt: skip
        words = [sys.executable, "-E", "-s", "-S", str(MODULE.with_name("flux_tasks.py")), json.dumps(told)]
    job = Job(
        id=id, argv=words, env=cluster.keep_env({**environment(asked, base), **env}), cwd=cwd, out=out, err=err,
        nodes=nodes, slots=held, gpus=gpus * per_node, exclusive=exclusive, foreground=foreground,
        limit=limit * cluster.minute / 60 if limit else None, data=data,
    )  # fmt: skip
    fits = [h for h in cluster.hosts.values() if h["slots"] >= held and h["gpus"] >= gpus * per_node]
    if len(fits) < nodes:
        text = f"unsatisfiable request: need {nodes} node(s), only {len(fits)} eligible"
        fail(job, "alloc", text)
    elif out and not Path(out).parent.is_dir():
        fail(job, "exec", "shell_init: No such file or directory")
    cluster.add(job)
    cluster.start_daemon(MODULE)
    return job


def fail(job: Job, kind: str, note: str) -> None:
    job.state, job.ended = ENDED, time.time()
    job.data |= {"exception": note, "type": kind}


def dependencies(cluster: Cluster, asked: Asked) -> list[list[str]]:
    found = []
    for item in asked.list("dependency"):
        scheme, _, value = item.partition(":")
        other = cluster.job(known(value))
        if scheme in ("begin-time", "singleton"):
            continue
        if not re.fullmatch(r"[ƒf][1-9A-HJ-NP-Za-km-z]+|\d+", value):
            raise Refused(f'dependency: {scheme}: "{value}" is not a valid jobid')
        if other is None:
            raise Refused(f"dependency: {scheme}: id {value}: job not found")
        if satisfied(scheme, other) is False:
            raise Refused(f"[Errno 22] dependency: {scheme}: job {value} can never be satisfied")
        found.append([scheme, other.id])
    return found


def satisfied(scheme: str, other: Job) -> bool | None:
    """Whether a dependency holds; None: that is not known yet."""
    if scheme in ("after", "afterstart"):
        return True if other.started else None if other.state == PENDING else False
    if other.state != ENDED:
        return None
    ok = result(other) == "COMPLETED"
    return {"afterany": True, "afterok": ok, "afternotok": not ok, "afterexcept": not ok and not other.code}[scheme]


# what is known about jobs


def result(job: Job) -> str:
    if job.state != ENDED:
        return NAMES[job.state] if job.state == RUNNING or not job.data["dependencies"] else "DEPEND"
    if job.cancelled:
        return "CANCELED"
    return "TIMEOUT" if job.timed_out else "COMPLETED" if job.wait == 0 else "FAILED"


def returned(job: Job) -> int | None:
    if job.state != ENDED:
        return None
    if job.code is None:
        return -128 if job.cancelled else 1
    return job.code if job.code >= 0 else 128 - job.code


def facts(job: Job) -> dict[str, Any]:
    state = {PENDING: result(job), RUNNING: "RUN", ENDED: "INACTIVE"}[job.state]
    hosts = [os.uname()[1]] * len(job.hosts)
    said = {
        "id": int.from_bytes(job.id.encode(), "big"), "jobid": shown(job.id), "name": job.data["name"], "state": state,
        "status": result(job), "nnodes": job.nodes, "ntasks": job.data["ntasks"], "cwd": job.cwd,
        "t_submit": job.submitted, "t_run": job.started, "t_inactive": job.ended, "queue": job.data["queue"],
        "nodelist": ",".join(hosts) or None, "duration": job.limit or 0.0, "username": "user", "urgency": 16,
        "returncode": returned(job), "exception": {"occurred": False},
        "dependencies": [f"after-finish={other}" for _, other in job.data["dependencies"]] if state == "DEPEND" else [],
        "annotations": {"sched": {"reason_pending": "insufficient resources"}} if state == "SCHED" else {},
    }  # fmt: skip
    if job.state == ENDED:
        said |= {"result": result(job), "success": result(job) == "COMPLETED"}
        if job.wait is not None:
            said["waitstatus"] = (returned(job) or 0) << 8
    if job.state != PENDING:  # what ends a job is told at once
        kind = job.data.get("type") or ("cancel" if job.cancelled else "timeout" if job.timed_out else None)
        if kind:
            note = job.data.get("exception") or ("resource allocation expired" if kind == "timeout" else "")
            said["exception"] = {"occurred": True, "severity": 0, "type": kind, "note": note}
    return {name: value for name, value in said.items() if value is not None}


def jobs(cluster: Cluster, argv: list[str]) -> int:
    ids, as_json, everything, form, header = [], False, False, None, True
    rest = list(argv)
    filtered = any(word in ("-a", "-c", "-f", "-u") for word in argv)
    while rest:
        word = rest.pop(0)
        if word == "--json":
            as_json = True
        elif word == "-a":
            everything = True
        elif word in ("-c", "-f", "-u"):
            rest.pop(0)
        elif word in ("-n", "-o", "-no"):
            header = header and "n" not in word
            form = rest.pop(0) if "o" in word else form
        elif word.startswith("-"):
            raise Refused(f"flux-jobs: error: unrecognized arguments: {word}", 2)
        elif not re.fullmatch(r"[ƒf][1-9A-HJ-NP-Za-km-z]+|\d+", word):
            raise Refused(f"usage: flux-jobs\nflux-jobs: error: argument JOBID: invalid JobID value: {word!r}", 2)
        else:
            ids.append(known(word))
    if ids and filtered:
        print("flux-jobs: WARNING: Filtering options ignored with jobid list", file=sys.stderr)
    found = [cluster.job(id) for id in ids] if ids else cluster.jobs(*(() if everything else (PENDING, RUNNING)))[::-1]
    for id, job in zip(ids, found, strict=False):
        if job is None:
            print(f"JobID {id} unknown", file=sys.stderr)
    known_jobs = [facts(job) for job in found if job is not None]
    if as_json:
        print(json.dumps(known_jobs[0] if len(ids) == 1 and known_jobs else {"jobs": known_jobs}))
    elif form:
        for said in known_jobs:
            names = {"id.f58plain": known(said["jobid"]), "id.f58": said["jobid"], "id": said["jobid"]}
            print(re.sub(r"\{([\w.]+)\}", lambda m, s=said, n=names: str(n.get(m[1], s.get(m[1], ""))), form))
    else:
        for said in known_jobs:
            print(said["jobid"], said["name"], said["status"])
    return 1 if ids and not known_jobs else 0


def job_command(cluster: Cluster, argv: list[str]) -> int:
    name, *rest = argv or [""]
    words = [word for word in rest if not word.startswith("-")]
    wants_spec = name == "info" and words[-1:] == ["jobspec"]
    if wants_spec:
        words.pop()
    if name == "last":
        print(shown(cluster.jobs()[-1].id))
        return 0
    if name == "id":
        print(known(words[-1]))
        return 0
    if name == "timeleft":
        print(2**32 - 1)
        return 0
    job = cluster.job(known(words[-1 if name != "wait-event" else 0])) if words else None
    if job is None:
        raise Refused(f"flux-job: {words[-1] if words else ''}: unknown job id")
    if name == "kill":
        cluster.signal(job.id, getattr(signal, f"SIG{words[0]}") if "-s" in rest else signal.SIGTERM)
        return 0
    if wants_spec:
        paths = {"stdout": job.out, "stderr": job.err}
        options = {stream: {"type": "file", "path": path} for stream, path in paths.items() if path}
        print(json.dumps({"attributes": {"system": {"cwd": job.cwd, "shell": {"options": {"output": options}}}}}))
        return 0
    if name == "info" and words[-1] == job.id:
        print(json.dumps(facts(job)))
        return 0
    if name == "eventlog" and "--format=json" in rest:
        print(json.dumps({"timestamp": job.submitted, "name": "submit", "context": {"urgency": 16}}))
        if (told := facts(job)["exception"])["occurred"]:
            event = {name: value for name, value in told.items() if name != "occurred"}
            print(json.dumps({"timestamp": time.time(), "name": "exception", "context": event}))
        return 0
    if name not in ("status", "attach", "wait-event", "wait"):
        raise Refused(f"flux-job: {name} is not in the stand-in", 2)
    while job.state != ENDED:
        time.sleep(0.05)
        job = cluster.job(job.id) or job
    return max(1, returned(job) or 0) if result(job) != "COMPLETED" and name != "wait-event" else 0


def cancel(cluster: Cluster, argv: list[str]) -> int:
    code = 0
    for word in argv:
        job = cluster.job(known(word))
        if job is None or job.state == ENDED:
            print(f"flux-cancel: ERROR: {word}: {'job is inactive' if job else 'unknown job id'}", file=sys.stderr)
            code = 1
            continue
        cluster.cancel(job.id, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL, spaced=2.5)
    return code


# inside a job


def hostlist(cluster: Cluster, argv: list[str]) -> int:
    inside = instance(cluster)
    count = inside.nodes if inside else len(cluster.hosts)
    if argv[-1] == "local" and "FLUX_TASK_RANK" in os.environ:
        count = int(os.environ["FLUX_JOB_NNODES"])
    joined = "," if "-d," in argv else " "
    print(joined.join([os.uname()[1]] * count))
    return 0


def exec_command(cluster: Cluster, argv: list[str]) -> int:
    """On other nodes of the batch job's instance: each in a process that no signal of the script's reaches."""
    inside = instance(cluster)
    nodes = range(inside.nodes if inside else len(cluster.hosts))
    rest, ranks = list(argv), set(nodes)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        value = rest.pop(0) if option in ("-r", "-x") else ""
        if option == "-x":
            ranks -= set(copies(value))
        elif option == "-r" and value != "all":
            ranks &= set(copies(value))
    import subprocess

    processes = [subprocess.Popen(rest, env={**os.environ, REMOTE: str(rank)}) for rank in sorted(ranks)]
    codes = [process.wait() for process in processes]
    for rank, code in zip(sorted(ranks), codes, strict=True):
        if code:
            print(f"{rank}: Exit {code}", file=sys.stderr)
    return max((code if code >= 0 else 128 - code for code in codes), default=0)


def getattr_command(cluster: Cluster, argv: list[str]) -> int:
    inside = instance(cluster)
    known_here = {"size": str(inside.nodes if inside else len(cluster.hosts)), "instance-level": "1" if inside else "0"}
    if inside is not None:
        known_here |= {"jobid": shown(inside.id), "parent-uri": f"local://{cluster.root}"}
    if argv[0] not in known_here:
        raise Refused(f"flux-getattr: {argv[0]}: No such file or directory")
    print(known_here[argv[0]])
    return 0


def resource(cluster: Cluster, argv: list[str]) -> int:
    inside = instance(cluster)
    count = inside.nodes if inside else len(cluster.hosts)
    cores = inside.slots if inside else min(host["slots"] for host in cluster.hosts.values())
    gpus = inside.data["gpus"] if inside else min(host["gpus"] for host in cluster.hosts.values())
    print(f"{count} Nodes, {cores * count} Cores, {gpus * count} GPUs")
    return 0


def said(text: str) -> Callable[[Cluster, list[str]], int]:
    def say(cluster: Cluster, argv: list[str]) -> int:
        print(text)
        return 0

    return say


SUBCOMMANDS: dict[str, Callable[[Cluster, list[str]], int]] = {
    "batch": flux_batch,
    "submit": submit,
    "run": run,
    "alloc": alloc,
    "jobs": jobs,
    "job": job_command,
    "cancel": cancel,
    "exec": exec_command,
    "hostlist": hostlist,
    "getattr": getattr_command,
    "resource": resource,
    "queue": said("Job submission is enabled\nScheduling is started"),
    "uptime": said(" 00:00:01 run 1m,  owner user,  depth 0,  size 4"),
    "version": said("commands:    \t\t0.88.0\nlibflux-core:\t\t0.88.0"),
    "--version": said("commands:    \t\t0.88.0"),
}


def flux(cluster: Cluster, argv: list[str]) -> int:
    if argv[:1] == ["--parent"]:
        os.environ["FLUX_URI"] = f"local://{cluster.root}"
        argv = argv[1:]
    name, *rest = argv or ["help"]
    if name not in SUBCOMMANDS:
        print(f"flux: `{name}' is not a flux command. See 'flux --help'", file=sys.stderr)
        return 1
    try:
        return cluster.perform(f"flux {name}", rest, SUBCOMMANDS[name])
    except Refused as error:
        lead = "" if error.text.startswith(("flux", "usage")) else f"flux-{name}: ERROR: "
        print(lead + error.text, file=sys.stderr)
        return error.code


class Flux(Daemon):
    """Starts jobs: an instance runs its script on the first of its nodes, with the variables of one."""

    def environment(self, job: Job) -> Mapping[str, str]:
        env = self.cluster.env(job)
        id = job.id if env.get("FLUX_F58_FORCE_ASCII") else "ƒ" + job.id[1:]
        if not job.data["instance"]:
            return {"FLUX_URI": f"local://{self.cluster.root}"}
        gpus = ",".join(map(str, range(job.data["gpus"])))
        return {
            "FLUX_URI": f"local://{self.cluster.root}#{job.id}",
            "FLUX_ENCLOSING_ID": id,
            **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}),
        }

    def ready(self, job: Job, jobs: list[Job]) -> bool:
        held = {other.id: other for other in jobs}
        states = [satisfied(scheme, held[id]) if id in held else False for scheme, id in job.data["dependencies"]]
        if False in states:
            fail(job, "dependency", "dependency can never be satisfied")
            self.cluster.save(job)
        return all(states)

    def time_is_up(self, job: Job) -> None:
        now = time.time()
        job.signals += [[now, signal.SIGALRM], [now, signal.SIGHUP], [now + self.cluster.minute / 12, signal.SIGKILL]]

    def _start(self, job: Job, hosts: list[str]) -> None:
        if job.data["signal"] and job.limit:
            number, before = warning(job.data["signal"])
            due = time.time() + job.limit - before * self.cluster.minute / 60
            job.signals.append([max(due, time.time()), number])
        super()._start(job, hosts)


def run() -> None:
    import shutil

    if shutil.which("flux") is None:
        os.environ["PATH"] += ":/bin:/usr/bin"
    main({"flux": flux}, Flux)
