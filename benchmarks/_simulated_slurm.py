"""A SLURM of a thousand nodes in one process: answers sbatch, squeue, sacct, scontrol and scancel, and ends runs.

The commands on PATH are a few lines of bash that pass their arguments on over a socket and print the answer. A run
starts no process: when its time is up, its records are written as its ranks and job script would write them, by the
code that those use. Started by `Cluster`; speaks and is told what happens by lines of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
printf '%s\\0' "${{0##*/}}" "$@" >&3; printf '\\n' >&3
read -r code <&3
cat <&3
exit "$code"
"""
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun")
MAX_ARRAY = 1001
HOUR = 3600.0


@dataclass
class Element:
    """One element of an array."""

    id: str
    run: int
    job: str  # key in the sweep
    sweep: str
    state: str = "PENDING"
    node: int = -1
    began: float = 0.0
    lasts: float = 0.0
    ended: float = 0.0


@dataclass
class Simulation:
    """The queue.

    Args:
        nodes: each carries one run.
        seconds: real seconds that a run takes on average; the first runs take exactly as long and end at once.
        steps: lines that a run leaves in its metrics.
    """

    nodes: int
    seconds: float
    steps: int
    elements: dict[str, Element] = field(default_factory=dict)
    pending: deque[Element] = field(default_factory=deque)
    running: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    next_id: int = 1000
    free: list[int] = field(default_factory=list)
    is_first: bool = True  # no run has ended yet

    def __post_init__(self) -> None:
        self.free = list(range(self.nodes))

    # commands

    def answer(self, name: str, argv: list[str]) -> tuple[int, str]:
        self.calls[name] += 1
        if "--version" in argv or "-V" in argv:
            return 0, "slurm 23.11.4\n"
        return getattr(self, name, lambda _: (0, ""))(argv)

    def sbatch(self, argv: list[str]) -> tuple[int, str]:
        script = Path(argv[-1]).read_text()
        job, self.next_id = str(self.next_id), self.next_id + 1
        key = re.search(r"^export HPC_HYDRA_JOB=(\S+)", script, re.MULTILINE)
        sweep = re.search(r"^export HPC_HYDRA_SWEEP=(\S+)", script, re.MULTILINE)
        runs = re.search(r"^runs=\((.*)\)", script, re.MULTILINE)
        assert key and sweep and runs, argv
        numbers = [int(word) for word in runs[1].split()]
        for at, run in enumerate(numbers):
            id_ = f"{job}_{at}" if len(numbers) > 1 else job
            element = Element(id_, run, key[1], sweep[1])
            self.elements[id_] = element
            self.pending.append(element)
        print(json.dumps({"event": "submitted", "time": time.time(), "runs": len(numbers)}), flush=True)
        return 0, f"{job}\n"

    def squeue(self, argv: list[str]) -> tuple[int, str]:
        wanted = self._wanted(argv)
        if wanted is None:
            return 0, ""
        return 0, "".join(f"{e.id}|{e.state}|0|{_date(e.began)}|{_reason(e)}\n" for e in wanted if not self._old(e))

    def sacct(self, argv: list[str]) -> tuple[int, str]:
        return 0, "".join(f"{e.id}|{e.state}|0:0|{_date(e.began)}|None\n" for e in self._wanted(argv) or ())

    def scontrol(self, argv: list[str]) -> tuple[int, str]:
        return 0, f"MaxArraySize            = {MAX_ARRAY}\n" if "config" in argv else ""

    def scancel(self, argv: list[str]) -> tuple[int, str]:
        jobs = {word.partition("_")[0] for word in argv}
        for element in self.elements.values():
            if element.id.partition("_")[0] in jobs and element.state in ("PENDING", "RUNNING"):
                element.state, element.ended = "CANCELLED", time.time()
                if element.node >= 0:
                    self.free.append(element.node)
        self.pending = deque(e for e in self.pending if e.state == "PENDING")
        self.running = {id_ for id_ in self.running if self.elements[id_].state == "RUNNING"}
        return 0, ""

    def _wanted(self, argv: list[str]) -> list[Element] | None:
        jobs = next((word.removeprefix("--jobs=") for word in argv if word.startswith("--jobs=")), None)
        if jobs is None:
            return None
        wanted = {job.partition("_")[0] for job in jobs.split(",")}
        return [e for e in self.elements.values() if e.id.partition("_")[0] in wanted]

    def _old(self, element: Element) -> bool:
        """Whether squeue has forgotten it: MinJobAge, in the time of the simulation."""
        return bool(element.ended) and time.time() - element.ended > 300.0 * self.seconds / HOUR

    # runs

    async def advance(self) -> None:
        """Start and end runs until cancelled."""
        rng = random.Random(0)
        while True:
            now = time.time()
            while self.pending and self.free and len(self.elements) >= self.nodes:
                element = self.pending.popleft()
                element.state, element.node, element.began = "RUNNING", self.free.pop(), now
                element.lasts = self.seconds * (1.0 if self.is_first else rng.uniform(0.5, 1.5))
                self.running.add(element.id)
            running = [self.elements[id_] for id_ in self.running]
            due = [element for element in running if now - element.began > element.lasts]
            if due:
                await self._end(due)
            await asyncio.sleep(0.05)

    async def _end(self, due: list[Element]) -> None:
        """End runs: their files first, then all in the index and in the queue at one moment."""
        ends = []
        for element in due:
            ends.append(write_records(element, self.steps))
            await asyncio.sleep(0)  # answers queries meanwhile
        for note in ends:
            note()
        now = time.time()
        for element in due:
            if element.state == "RUNNING":
                element.state, element.ended = "COMPLETED", now
                self.running.discard(element.id)
                self.free.append(element.node)
        self.is_first = False
        print(json.dumps({"event": "ended", "time": now, "runs": len(due), "calls": self.calls}), flush=True)

    async def serve(self) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            words = (await reader.readuntil(b"\0\n"))[:-2].decode().split("\0")
            code, text = self.answer(words[0], words[1:])
            writer.write(f"{code}\n{text}".encode())
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(client, "127.0.0.1", 0, limit=2**24)
        print(json.dumps({"event": "listening", "port": server.sockets[0].getsockname()[1]}), flush=True)
        await self.advance()


def _date(began: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(began)) if began else "N/A"


def _reason(element: Element) -> str:
    return "Resources" if element.state == "PENDING" else "None"


def write_records(element: Element, steps: int) -> Any:
    """Write what the ranks and the job script of a completed run write; return what enters it into the index."""
    from hpc_hydra.node import finalize
    from hpc_hydra.planning.types import to_json
    from hpc_hydra.records.attempt import Attempt
    from hpc_hydra.records.files import write_json
    from hpc_hydra.records.last_words import keep_room
    from hpc_hydra.records.layout import attempt_name
    from hpc_hydra.records.metrics import MetricLog
    from hpc_hydra.records.outcome_index import note_end
    from hpc_hydra.records.types import RankEnd, Returned

    host = f"node{element.node:04}"
    name = attempt_name(element.id, element.began)
    attempt = Attempt(Path(element.sweep), element.run, element.job, name, "slurm")
    record, plan = _records(element.sweep)[element.run]
    paths = attempt.paths(record)
    paths.attempt(name).mkdir(parents=True)
    keep_room(paths.last_words(name))
    hydra = paths.root / ".hydra"
    hydra.mkdir()
    for file in ("config.yaml", "hydra.yaml", "overrides.yaml"):
        (hydra / file).write_text("- lr=0.1\n")
    now = time.time()
    endpoint = {"host": host, "address": host, "port": 29500, "token": name, "job_id": element.id}
    write_json(paths.rendezvous(name), {**endpoint, "world_size": plan.world_size, "published": element.began})
    log = MetricLog(paths.root, name)
    for step in range(steps):
        log.write({"loss": 1.0 / (1 + step), "accuracy": step / (1 + step)}, step)
    log.close()
    for rank in range(plan.world_size):
        path = paths.rank_log(name, rank)
        path.write_text(f"step {steps}\n")
        write_json(paths.rank_end(name, rank), to_json(RankEnd(rank, host, 0, ended=now, log=str(path))))
    write_json(paths.returned(name), to_json(Returned("json", {"loss": 0.1 + element.run % 7})))
    outcome = finalize.write(attempt.sweep, paths, record, finalize.gathered(attempt, record, plan, 0))

    def note() -> None:
        socket.gethostname = lambda: host  # each node has an index file of its own
        note_end(attempt.sweep, element.job, outcome)

    return note


_CACHE: dict[str, dict[int, Any]] = {}


def _records(sweep: str) -> dict[int, Any]:
    """Read the runs and their plans once, not once a run as nodes do."""
    from hpc_hydra.records.frozen_config import read_plans, read_runs

    if sweep not in _CACHE:
        plans = read_plans(Path(sweep))
        _CACHE[sweep] = {record.num: (record, plans[record.plan]) for record in read_runs(Path(sweep))}
    return _CACHE[sweep]


class Cluster:
    """The simulation in a process of its own, with commands in a directory for PATH; ended by `end`."""

    def __init__(self, folder: Path, nodes: int, seconds: float, steps: int) -> None:
        words = [sys.executable, __file__, str(nodes), str(seconds), str(steps)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ""})
        port = self.event()["port"]
        self.path = folder / "bin"
        self.path.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            (self.path / name).write_text(COMMAND.format(port=port))
            (self.path / name).chmod(0o755)

    def event(self) -> dict[str, Any]:
        """Return the next event; raises `SystemExit` when the simulation has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the simulated scheduler has ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    asyncio.run(Simulation(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])).serve())
