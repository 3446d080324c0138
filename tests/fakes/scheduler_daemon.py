"""The background half of a stand-in scheduler: starts jobs on free hosts, sends signals, notes how they end.

A stand-in's module has a function ``run``, which calls ``main(COMMANDS, Daemon)``. Must not know: hpc_hydra, any
scheduler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

from scheduler_state import ENDED, MARK, PENDING, REMOTE, RUNNING, TICK, Cluster, Job, is_alive

IDLE = 20.0  # seconds after which a daemon without work goes


class Daemon:
    """Starts jobs on free hosts in their order, sends due signals, notes how they end. A stand-in overrides hooks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._children: dict[int, str] = {}

    # hooks

    def environment(self, job: Job) -> Mapping[str, str]:
        """What the scheduler adds to the job's environment, once its hosts are known."""
        return {}

    def ready(self, job: Job, jobs: list[Job]) -> bool:
        """Whether a pending job may start now, but for free hosts: dependencies, limits of arrays."""
        return True

    def time_is_up(self, job: Job) -> None:
        """Its limit has passed; called once. Here it is told to end, and killed a little later."""
        now = time.time()
        job.signals += [[now, signal.SIGTERM], [now + self.cluster.minute / 2, signal.SIGKILL]]

    def over(self, job: Job) -> None:
        """It has ended; a stand-in may put it back into the queue."""

    def tick(self, active: list[Job]) -> None:
        """Called in each round, within a transaction."""

    # the loop

    def serve(self) -> None:
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        idle = time.monotonic()
        while time.monotonic() - idle < IDLE and self.cluster.root.exists():
            active = self.cluster.jobs(PENDING, RUNNING)
            if active:
                idle = time.monotonic()
                with self.cluster.locked():
                    self._round()
            time.sleep(TICK)

    def _round(self) -> None:
        self._reap()
        self.tick(self.cluster.jobs(PENDING, RUNNING))
        for job in self.cluster.jobs(RUNNING):
            self._look_after(job)
        if not any(not job.held for job in self.cluster.jobs(PENDING)):
            return
        everything = self.cluster.jobs()
        for job in everything:
            if job.state != PENDING or job.held or not self.ready(job, everything):
                continue
            if hosts := self._room(job, everything):
                self._start(job, hosts)

    def _look_after(self, job: Job) -> None:
        now = time.time()
        if job.limit is not None and job.started and now - job.started > job.limit and not job.timed_out:
            job.timed_out = True
            self.time_is_up(job)
            self.cluster.save(job)
        due = [int(number) for when, number in job.signals if when <= now]
        if due and (job.pid or not job.foreground):
            job.signals = [pair for pair in job.signals if pair[0] > now]
            self.cluster.save(job)
            for number in due:
                self._send(job, number)
        if job.foreground and job.pid and not is_alive(job.pid):
            self.cluster.finish(job.id, signal.SIGKILL)

    def _send(self, job: Job, number: int) -> None:
        """To the script's host only, as schedulers do; KILL goes to all."""
        for pid, env in self.cluster.members(job.id).items():
            if number == signal.SIGKILL or REMOTE not in env:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _reap(self) -> None:
        for pid, id in list(self._children.items()):
            done, wait = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[pid]
                self.cluster.finish(id, wait)
                job = self.cluster.job(id)
                if job is not None:
                    self.over(job)

    def _room(self, job: Job, jobs: list[Job]) -> list[str]:
        """Hosts that a job may have now; empty: not enough are free."""
        whole = self.cluster.hosts
        free = {name: dict(has) for name, has in whole.items()}
        for other in jobs:
            for host in other.hosts if other.state == RUNNING else ():
                if host in free:
                    free[host]["slots"] -= free[host]["slots"] if other.exclusive else other.slots
                    free[host]["gpus"] -= other.gpus
        fits = [
            name
            for name, has in free.items()
            if has["slots"] >= job.slots and has["gpus"] >= job.gpus and (not job.exclusive or has == whole[name])
        ]
        return fits[: job.nodes] if len(fits) >= job.nodes else []

    def _start(self, job: Job, hosts: list[str]) -> None:
        job.hosts, job.state, job.started = hosts, RUNNING, time.time()
        if not job.foreground:
            self._spawn(job)
        self.cluster.save(job)

    def _spawn(self, job: Job) -> None:
        import subprocess

        env = {**self.cluster.env(job), **self.environment(job), MARK: f"{self.cluster.root}:{job.id}"}
        with contextlib.ExitStack() as files:
            source = files.enter_context(open(job.stdin or os.devnull))
            try:
                out = files.enter_context(open(job.out or os.devnull, "a"))
                err = files.enter_context(open(job.err, "a")) if job.err else subprocess.STDOUT
                process = subprocess.Popen(
                    job.argv, env=env, cwd=job.cwd, stdin=source, stdout=out, stderr=err, start_new_session=True
                )
            except OSError as error:
                print(f"job {job.id}: {error}", flush=True)
                job.state, job.wait, job.ended = ENDED, 127 << 8, time.time()
                return
        job.pid = process.pid
        self._children[process.pid] = job.id
        process.returncode = 0  # reaped by the daemon itself


def main(commands: Mapping[str, Callable[[Cluster, list[str]], int]], daemon: type[Daemon]) -> None:
    """``command.py MODULE COMMAND ROOT ARG...`` performs a command; ``command.py MODULE --daemon ROOT`` runs jobs."""
    name, root, *argv = sys.argv[1:]
    cluster = Cluster(root)
    if name == "--daemon":
        daemon(cluster).serve()
        return
    code = cluster.perform(name, argv, commands[name])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)  # does not free all that was imported
