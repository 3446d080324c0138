"""blaunch and jsrun as stand-ins: tasks on the hosts of a job, each a local process with its host's variables."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scheduler_state import MARK, REMOTE, TICK, Cluster, is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

JSRUN = {  # short → long, of those that take a value
    "n": "nrs", "r": "rs_per_host", "a": "tasks_per_rs", "c": "cpu_per_rs", "g": "gpu_per_rs", "b": "bind",
    "d": "launch_distribution", "l": "latency_priority", "p": "np", "E": "env", "h": "chdir", "S": "smpiargs",
    "o": "stdio_stdout", "k": "stdio_stderr", "m": "memory_per_rs",
}  # fmt: skip
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def _hosts() -> dict[str, int]:
    words = os.environ.get("LSB_MCPU_HOSTS", "").split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def _run(tasks: Sequence[tuple[Sequence[str], Mapping[str, str], str]], *, together: bool = False) -> int:
    """Run all, hand on signals; the first bad exit code, 0 where there is none. `together`: one ends all."""
    import subprocess

    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: object) -> None:
        for process in running:
            process.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, hand_on)
    for argv, env, cwd in tasks:
        try:
            running.append(subprocess.Popen(argv, env=env, cwd=cwd, start_new_session=True))
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            return 127
    bad: list[int] = []
    left = list(running)
    while left:
        time.sleep(TICK)
        for process in [process for process in left if process.poll() is not None]:
            left.remove(process)
            if code := process.returncode:
                bad.append(code if code > 0 else 128 - code)
                for other in left if together else ():
                    other.kill()
    return bad[0] if bad else 0


def blaunch(cluster: Cluster, argv: list[str]) -> int:
    """``blaunch [-n] [-z "h1 h2" | host] command``: by a shell, without the caller's variables, at home."""
    rest, hosts, shell = list(argv), [], True
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-z":
            hosts = rest.pop(0).split()
        elif word == "-no-shell":
            shell = False
        elif word not in ("-n", "-use-login-shell"):
            print(f"blaunch: illegal option -- {word[1:]}", file=sys.stderr)
            return 255
    held = _hosts()
    if not held or "LSB_JOBID" not in os.environ:
        print("blaunch: this is not a job", file=sys.stderr)
        return 255
    if not hosts and rest and rest[0] in held:
        hosts = [rest.pop(0)]
    hosts = hosts or [host for host, number in held.items() for _ in range(number)]
    for host in hosts:
        if host not in held:
            print(f"blaunch: host {host} is not allocated to this job", file=sys.stderr)
            return 255
    if not rest:
        print("blaunch: no command", file=sys.stderr)
        return 255
    kept = ("HOME", "USER", "LANG", MARK)
    env = {name: value for name, value in os.environ.items() if name in kept or name.startswith("LSB_")}
    env |= {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    command = ["/bin/sh", "-c", " ".join(rest)] if shell else rest
    home = os.environ.get("HOME", "/")
    job = next((one for one in cluster.jobs() if str(one.data["number"]) == os.environ["LSB_JOBID"]), None)
    tasks = []
    for host in hosts:  # a host's own GPUs, those that the batch script does not have where others are free
        own, has = {REMOTE: host, "HOSTNAME": host}, cluster.hosts[host]["gpus"]
        if job is not None and job.gpus:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(has - job.gpus, has)))
        tasks.append((command, {**env, **own}, home))
    return _run(tasks)


def jsrun(cluster: Cluster, argv: list[str]) -> int:
    """Resource sets, packed, on what other steps of the job leave free; a step waits for it, in the order of arrival.

    Whether a task that fails ends the others is a note of the cluster, ``ends_together``.
    """
    try:
        asked, command = _options(argv)
    except ValueError as error:
        print(f"jsrun: {error}", file=sys.stderr)
        return 1
    hosts = list(_hosts())[1:]
    if "CSM_ALLOCATION_ID" not in os.environ or not hosts:
        print("Error: It is only possible to use js commands within a job allocation", file=sys.stderr)
        return 1
    if "TMPDIR" in os.environ:
        print(f"Error: Remote JSM server is not responding on host {hosts[0]}", file=sys.stderr)
        return 1
    has = cluster.hosts[hosts[0]]
    sets, per_host = int(asked.get("nrs", "1")), int(asked.get("rs_per_host", "0"))
    tasks, gpus = int(asked.get("tasks_per_rs", "1")), asked.get("gpu_per_rs", "0")
    number = has["gpus"] if gpus == "ALL_GPUS" else int(gpus)
    cores = has["slots"] if asked.get("cpu_per_rs") == "ALL_CPUS" else int(asked.get("cpu_per_rs", "1"))
    most = min(has["slots"] // cores if cores else 0, has["gpus"] // number if number else sets)
    per_host = per_host or min(most, sets)
    if not command or sets > len(hosts) * per_host or per_host > most:
        print("Error: Resources could not be allocated: too many resource sets for a host", file=sys.stderr)
        return 1
    if not re.fullmatch(r"none|rs|packed(:\d+)?|proportional-packed:\d+", asked.get("bind", "packed:1")):
        print(f"jsrun: bad value for bind: {asked['bind']}", file=sys.stderr)
        return 1
    used = -(-sets // per_host)
    with _room(cluster, hosts, used, min(per_host, sets) * cores, min(per_host, sets) * number) as hosts:
        todo = _tasks(command, asked, hosts, sets, per_host, tasks, number)
        return _run(todo, together=cluster.note("ends_together", True))


def _tasks(
    command: list[str], asked: dict[str, str], hosts: list[str], sets: int, per_host: int, tasks: int, number: int
) -> list[tuple[list[str], dict[str, str], str]]:
    size, todo = sets * tasks, []
    for rank in range(size):
        place = rank // tasks
        local_size = min(per_host, sets - place // per_host * per_host) * tasks
        local = rank - place // per_host * per_host * tasks
        own = {
            "RANK": rank, "SIZE": size, "LOCAL_RANK": local, "LOCAL_SIZE": local_size,
        }  # fmt: skip
        env = {**os.environ, "PMIX_RANK": str(rank), REMOTE: hosts[place // per_host]}
        env |= {f"JSM_NAMESPACE_{name}": str(value) for name, value in own.items()}
        env |= {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in own.items()}
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(number)))
        todo.append((command, env, asked.get("chdir", str(Path.cwd()))))
    return todo


@contextlib.contextmanager
def _room(cluster: Cluster, hosts: list[str], count: int, cores: int, gpus: int) -> Iterator[list[str]]:
    """Hosts with so much free on each, held meanwhile; what a step has is in ``steps.jsonl``."""
    name, me = f"steps {os.environ['LSB_JOBID']}", os.getpid()
    while True:
        with cluster.locked():
            steps = [step for step in cluster.note(name, []) if is_alive(step["pid"])]
            if me not in [step["pid"] for step in steps]:
                steps.append({"pid": me, "parts": {}})
            waiting = [step for step in steps if not step["parts"]]
            if waiting[0]["pid"] == me:
                waiting[0]["parts"] = _parts(cluster, steps, hosts, count, cores, gpus)
            cluster.set_note(name, steps)
            parts = waiting[0]["parts"] if waiting[0]["pid"] == me else {}
        if parts:
            break
        time.sleep(TICK)
    _note_step(cluster, event="begins", parts=parts)
    try:
        yield list(parts)
    finally:
        _note_step(cluster, event="ends", parts=parts)
        with cluster.locked():
            cluster.set_note(name, [step for step in cluster.note(name, []) if step["pid"] != me])


def _parts(
    cluster: Cluster, steps: list[dict[str, Any]], hosts: list[str], count: int, cores: int, gpus: int
) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for host in hosts:
        has, parts = cluster.hosts[host], [step["parts"][host] for step in steps if host in step["parts"]]
        free = {
            kind: [at for at in range(has[total]) if not any(at in part[kind] for part in parts)]
            for kind, total in (("cores", "slots"), ("gpus", "gpus"))
        }
        if len(free["cores"]) >= cores and len(free["gpus"]) >= gpus and len(found) < count:
            found[host] = {"cores": free["cores"][:cores], "gpus": free["gpus"][:gpus]}
    return found if len(found) == count else {}


def _note_step(cluster: Cluster, **what: Any) -> None:
    line = {"time": time.monotonic(), "run": os.environ.get("HPC_HYDRA_RUN"), **what}
    with open(cluster.root / "steps.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def _options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    asked, rest = {}, list(argv)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name not in JSRUN.values():
                raise ValueError(f"unrecognized option '{word}'")
            value = value if equals else rest.pop(0)
        else:
            if word[1:2] not in JSRUN:
                raise ValueError(f"invalid option -- '{word[1:]}'")
            name, value = JSRUN[word[1]], word[2:] or rest.pop(0)
        asked[name] = value
    return asked, rest
