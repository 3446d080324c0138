"""What stand-in schedulers share: jobs kept in files, run on pretended hosts, ended with their children.

A stand-in is a module with functions for its commands and a `scheduler_daemon.Daemon` of its own. `install` writes its
commands into a folder; each call is in ``calls.jsonl``.
A job is told from others by the variable FAKE_JOB of its processes.
Commands are called thousands of times: what takes long to import is imported where it is used (subprocess), or not at
all (dataclasses, typing). Must not know: hpc_hydra, pytest, any scheduler.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "FAKE_JOB"  # in the environment of all processes of a job: "<root>:<id>"
REMOTE = "FAKE_REMOTE_HOST"  # in that of processes on a host other than the script's, or of a launcher's task
PENDING, RUNNING, ENDED = "pending", "running", "ended"
PYTHON = (sys.executable, "-E", "-s", "-S")
COMMAND = Path(__file__).with_name("command.py")
TICK = 0.03  # seconds between looks of the daemon


class Job:
    """One thing in the queue. ``data`` is the scheduler's own: names, queues, array indices, what was asked."""

    def __init__(
        self,
        id: str,
        argv: list[str],
        env: str,  # key of what `Cluster.keep_env` keeps
        cwd: str = "/",
        stdin: str | None = None,  # file
        out: str | None = None,  # file that is appended to; None: nowhere
        err: str | None = None,  # None: where `out` goes
        nodes: int = 1,
        slots: int = 1,  # on each node
        gpus: int = 0,  # on each node
        exclusive: bool = False,
        limit: float | None = None,  # seconds of run time
        foreground: bool = False,  # the command that submitted it runs it, in its own terminal (see `run_here`)
        held: bool = False,
        state: str = PENDING,
        hosts: Iterable[str] = (),
        pid: int | None = None,
        submitted: float | None = None,  # None: now
        started: float | None = None,
        ended: float | None = None,
        wait: int | None = None,  # wait status; None: it never ran
        cancelled: bool = False,
        timed_out: bool = False,
        signals: Iterable[list[float]] = (),  # [due (Unix time), number], not yet sent
        left: Iterable[str] = (),  # command lines of processes that outlived the script
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.id, self.argv, self.env, self.cwd, self.stdin, self.out, self.err = id, argv, env, cwd, stdin, out, err
        self.nodes, self.slots, self.gpus, self.exclusive, self.limit = nodes, slots, gpus, exclusive, limit
        self.foreground, self.held, self.state, self.pid = foreground, held, state, pid
        self.submitted = time.time() if submitted is None else submitted
        self.started, self.ended, self.wait, self.cancelled, self.timed_out = started, ended, wait, cancelled, timed_out
        self.hosts, self.signals, self.left, self.data = list(hosts), list(signals), list(left), dict(data or {})

    @property
    def code(self) -> int | None:
        return None if self.wait is None else os.waitstatus_to_exitcode(self.wait)


class Cluster:
    """The state of a stand-in scheduler, in a directory. Any number of processes may use it at a time."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self.root / "jobs.sqlite", timeout=60, isolation_level=None)
        self._db.execute("PRAGMA busy_timeout=60000")
        self._lock = open(self.root / "lock", "a")  # noqa: SIM115 (held as long as this object lives)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS jobs(seq INTEGER PRIMARY KEY, id TEXT UNIQUE, state TEXT, body TEXT)"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS notes(name TEXT PRIMARY KEY, body TEXT)")

    # jobs

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else reads or writes meanwhile. May be nested."""
        if self._db.in_transaction:
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def next_number(self) -> int:
        with self.locked():
            number = int(self.note("number", 0)) + 1
            self.set_note("number", number)
            return number

    def keep_env(self, env: Mapping[str, str]) -> str:
        key = f"{os.getpid()}-{time.monotonic_ns()}"
        (self.root / f"env-{key}.json").write_text(json.dumps(dict(env)))
        return key

    def env(self, job: Job) -> dict[str, str]:
        """The environment that a job was submitted with."""
        found: dict[str, str] = json.loads((self.root / f"env-{job.env}.json").read_text())
        return found

    def add(self, *jobs: Job) -> None:
        with self.locked():
            for job in jobs:
                self._db.execute(
                    "INSERT INTO jobs(id, state, body) VALUES (?, ?, ?)", (job.id, job.state, json.dumps(vars(job)))
                )

    def save(self, job: Job) -> None:
        with self.locked():
            self._db.execute("UPDATE jobs SET state=?, body=? WHERE id=?", (job.state, json.dumps(vars(job)), job.id))

    def jobs(self, *states: str) -> list[Job]:
        """All jobs, or those of these states, in the order of their submission."""
        states = states or (PENDING, RUNNING, ENDED)
        rows = self._db.execute(
            f"SELECT body FROM jobs WHERE state IN ({','.join('?' * len(states))}) ORDER BY seq", states
        )
        return [Job(**json.loads(body)) for (body,) in rows.fetchall()]

    def job(self, id: str) -> Job | None:
        row = self._db.execute("SELECT body FROM jobs WHERE id=? AND state != 'forgotten'", (id,)).fetchone()
        return Job(**json.loads(row[0])) if row else None

    def forget(self, *ids: str) -> None:
        """As schedulers do with jobs that ended some time ago; without ids: with all that ended."""
        with self.locked():
            for id in ids or [job.id for job in self.jobs(ENDED)]:
                self._db.execute("UPDATE jobs SET state='forgotten' WHERE id=?", (id,))

    def forgotten(self) -> list[Job]:
        """Those that `forget` took out of the queue, which accounting may still know."""
        rows = self._db.execute("SELECT body FROM jobs WHERE state='forgotten' ORDER BY seq")
        return [Job(**json.loads(body)) for (body,) in rows.fetchall()]

    def signal(self, id: str, *numbers: int, spaced: float = 0.0) -> None:
        """Send signals to a job, ``spaced`` seconds apart. One that waits (and gets KILL or TERM) never runs."""
        with self.locked():
            job = self.job(id)
            if job is None or job.state == ENDED:
                return
            job.signals += [[time.time() + i * spaced, number] for i, number in enumerate(numbers)]
            self.save(job)

    def cancel(self, id: str, *numbers: int, spaced: float = 10.0) -> None:
        """Mark as cancelled: one that waits is ended at once, one that runs gets these signals."""
        with self.locked():
            job = self.job(id)
            if job is None or job.state == ENDED:
                return
            job.cancelled = True
            if job.state == PENDING:
                job.state, job.ended = ENDED, time.time()
            self.save(job)
            self.signal(id, *(numbers or (signal.SIGTERM, signal.SIGKILL)), spaced=spaced)

    # notes: settings of the test, hosts, counters

    def note(self, name: str, default: Any = None) -> Any:
        row = self._db.execute("SELECT body FROM notes WHERE name=?", (name,)).fetchone()
        return json.loads(row[0]) if row else default

    def set_note(self, name: str, value: Any) -> None:
        with self.locked():
            self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(value)))

    @property
    def hosts(self) -> dict[str, dict[str, int]]:
        """Name → ``{"slots": n, "gpus": n}``; a test sets others by ``set_note("hosts", ...)``."""
        usual = {f"node{i:02d}": {"slots": 8, "gpus": 4} for i in range(1, 5)}
        found: dict[str, dict[str, int]] = self.note("hosts", usual)
        return found

    @property
    def minute(self) -> float:
        """Seconds that a minute of time limits lasts here; a test sets less."""
        return float(self.note("minute", 60.0))

    # misbehaviour

    def misbehave(
        self, command: str, *, slow: float = 0.0, chatter: str = "", errors: str = "", code: int | None = None,
        after: bool = False, times: int = 1_000_000,
    ) -> None:  # fmt: skip
        """For so many calls the command is slow, says more, or fails with ``code``, before or ``after`` its work."""
        self.set_note(
            f"misbehave {command}",
            {"slow": slow, "chatter": chatter, "errors": errors, "code": code, "after": after, "times": times},
        )

    def _misbehaviour(self, command: str) -> dict[str, Any]:
        with self.locked():
            how: dict[str, Any] = self.note(f"misbehave {command}", {})
            if not how or how["times"] < 1:
                return {}
            self.set_note(f"misbehave {command}", {**how, "times": how["times"] - 1})
            return how

    # commands

    def calls(self, command: str | None = None) -> list[list[str]]:
        """argv of each call so far, the command's name first."""
        path = self.root / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [argv for argv in map(json.loads, lines) if command in (None, argv[0])]

    def perform(self, name: str, argv: list[str], work: Callable[[Cluster, list[str]], int]) -> int:
        with open(self.root / "calls.jsonl", "a") as log:
            log.write(json.dumps([name, *argv]) + "\n")
        how = self._misbehaviour(name)
        time.sleep(how.get("slow", 0.0))
        if how.get("chatter"):
            print(how["chatter"], flush=True)
        if how.get("errors"):
            print(how["errors"], file=sys.stderr, flush=True)
        if how.get("code") is not None and not how["after"]:
            return int(how["code"])
        with contextlib.redirect_stdout(None) if how.get("after") else contextlib.nullcontext():
            code = work(self, argv)
        return int(how["code"]) if how.get("code") is not None else code

    def run_here(self, job: Job, environment: Callable[[Cluster, Job], Mapping[str, str]], **popen: Any) -> int:
        """Wait for the hosts of a ``foreground`` job, run it with this process's streams; returns its exit code."""
        while (now := self.job(job.id)) is not None and now.state == PENDING:
            time.sleep(TICK)
        if now is None or now.state == ENDED:
            return 130
        env = {**self.env(now), **environment(self, now), MARK: f"{self.root}:{now.id}"}
        import subprocess

        process = subprocess.Popen(now.argv, env=env, cwd=now.cwd, **popen)
        with self.locked():
            now = self.job(job.id) or now
            now.pid = process.pid
            self.save(now)
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:  # the terminal has told the job too
                continue
        self.finish(job.id, (code << 8) if code >= 0 else -code)
        return code if code >= 0 else 128 - code

    def finish(self, id: str, wait: int) -> None:
        with self.locked():
            job = self.job(id)
            if job is not None and job.state == RUNNING:
                job.state, job.wait, job.ended = ENDED, wait, time.time()
                job.left = self.end_members(id)
                self.save(job)

    # processes

    def members(self, id: str | None = None) -> dict[int, dict[str, str]]:
        """Live processes of a job, or of all: pid → environment."""
        mark = f"{MARK}={self.root}:".encode() + (b"" if id is None else id.encode() + b"\0")
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                text = (folder / "environ").read_bytes() + b"\0"
            except OSError:
                continue
            if b"\0" + mark in b"\0" + text and is_alive(int(folder.name)):
                pairs = (item.partition("=") for item in text.decode("utf-8", "replace").split("\0"))
                found[int(folder.name)] = {key: value for key, _, value in pairs}
        return found

    def end_members(self, id: str | None = None) -> list[str]:
        """Kill what is left of a job, as control groups do; returns its command lines."""
        said = []
        for pid in self.members(id):
            with contextlib.suppress(OSError):
                said.append(Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
                os.kill(pid, signal.SIGKILL)
        return said

    def start_daemon(self, module: Path) -> None:
        """Start the background process of ``module``, unless it is there."""
        with self.locked():
            pid = self.note("daemon")
            if pid and is_alive(pid):
                return
            import subprocess

            argv = [*PYTHON, str(COMMAND), module.stem, "--daemon", str(self.root)]
            env = {name: value for name, value in os.environ.items() if name != MARK}
            with open(self.root / "daemon.log", "a") as log:
                process = subprocess.Popen(
                    argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self.set_note("daemon", process.pid)

    def stop(self) -> None:
        """End the daemon and every process of every job, by their ids."""
        pid = self.note("daemon")
        if pid and is_alive(pid):
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        while self.end_members():
            time.sleep(TICK)


def is_alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def install(module: Path, commands: Mapping[str, Any] | list[str], folder: Path, root: Path) -> Cluster:
    """Write the commands of a stand-in into ``folder``, which the caller puts into PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in commands:
        words = map(shlex.quote, (*PYTHON, str(COMMAND), module.stem, name, str(root)))
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        path.chmod(0o755)
    return Cluster(root)
