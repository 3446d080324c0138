"""A queue on this machine: each run gets its own GPUs, cores and memory, and waits until they are free.

A run is one process group. One thread per running run awaits its end; nothing is polled. Must not know: Hydra, what a
run computes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler, State, SubmitError, Submitter, queue_id
from hpc_hydra.schedulers.devices import Machine, this_machine
from hpc_hydra.schedulers.environment import DEVICE_VARIABLES, cleaned
from hpc_hydra.schedulers.local_base import ids_of

log = logging.getLogger(__name__)

GRACE = 20.0  # seconds between the request to end and the kill; the ranks' own starter kills after half of it
_STEP = 0.02  # seconds between two looks at a process group whose first process has ended


@dataclass(frozen=True)
class LocalShare:
    """Resources of a run."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0
    alone: bool = False


@dataclass
class LocalRun:
    id: str
    spec: JobSpec
    script: Path
    num: int
    share: LocalShare
    status: JobStatus = field(default_factory=lambda: JobStatus(State.PENDING, "PENDING"))
    process: subprocess.Popen[bytes] | None = None
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    stopped: State | None = None  # why it was ended: cancelled, or at its time limit


class LocalSubmitter(Submitter):
    """Starts scripts on this machine, in the order of submission, as many at once as it has room for."""

    _stdin = subprocess.DEVNULL  # of the scripts

    def __init__(self, adapter: Scheduler, machine: Callable[[], Machine] = this_machine, grace: float = GRACE) -> None:
        self.adapter, self.grace = adapter, grace
        self.machine = machine()
        self._gpus, self._cpus = list(self.machine.gpus.ids), list(self.machine.cpus)
        self._memory = self.machine.memory
        self._runs: dict[str, LocalRun] = {}
        self._waiting: list[LocalRun] = []
        self._running: list[LocalRun] = []
        self._changed = threading.Condition()
        self._closed = False

    def check(self, request: Request) -> None:
        capability_checks.check(self.adapter, request)
        self._share(request)

    def submit(self, spec: JobSpec, script: Path) -> tuple[str, ...]:
        self.check(spec.plan.request)
        share = self._share(spec.plan.request)
        ids = ids_of(spec)
        firsts = {queue_id(id_): num for id_, num in reversed(list(zip(ids, spec.runs, strict=True)))}
        runs = [LocalRun(id_, spec, script, firsts[id_], share) for id_ in dict.fromkeys(map(queue_id, ids))]
        with self._changed:
            known = [run.id for run in runs if run.id in self._runs and not self._runs[run.id].status.state.is_finished]
            if known or self._closed:
                raise SubmitError(f"already submitted: {' '.join(known)}" if known else "the queue is closed")
            if share.cpus > len(self.machine.cpus):
                log.warning("%s: %d cores asked, %d here: runs alone", spec.key, share.cpus, len(self.machine.cpus))
            self._runs.update({run.id: run for run in runs})
            self._waiting.extend(runs)
            self._start_those_that_fit()
        return ids

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        with self._changed:
            runs = {job: self._runs.get(queue_id(job)) for job in ids}
            return {job: run.status if run is not None else JobStatus(State.UNKNOWN) for job, run in runs.items()}

    def cancel(self, ids: Sequence[str]) -> None:
        """End these pending or running runs and all their processes; return when they are gone."""
        wanted = [self._runs[job] for job in dict.fromkeys(map(queue_id, ids)) if job in self._runs]
        with self._changed:
            for run in [run for run in self._waiting if run in wanted]:
                self._waiting.remove(run)
                run.status = JobStatus(State.CANCELLED, "CANCELLED")
            for run in wanted:
                self._stop(run, State.CANCELLED)
            self._changed.wait_for(lambda: not any(run in self._running for run in wanted))

    def close(self, *, cancel: bool) -> None:
        with self._changed:
            self._closed = True
            left = [run.id for run in (*self._waiting, *self._running)]
        if cancel:
            self.cancel(left)
        with self._changed:
            self._waiting.clear()

    def abandon(self) -> None:
        for run in list(self._running):
            if run.process is not None:
                _signal(run.process.pid, signal.SIGKILL)

    # what a run needs

    def _share(self, request: Request) -> LocalShare:
        """Return the share of a run. Raises `PlanError` if this machine is too small."""
        total = len(self.machine.gpus.ids)
        gpus = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
        if request.gpu_request == "none":
            gpus = 0
        if gpus > total:
            raise PlanError(
                f"a run needs {gpus} GPUs, this machine has {total}",
                where="resources.gpus_per_proc",
                fix="resources.gpus_per_proc=0 for ranks on CPUs, or fewer ranks",
            )
        memory = request.mem_per_node or 0
        if memory > self.machine.memory:
            raise PlanError(
                f"a run needs {memory} MiB, this machine has {self.machine.memory} MiB",
                where="resources.mem_per_node",
                fix="resources.mem_per_node=null",
            )
        cpus = self._cpus_of(request, gpus)
        alone = request.exclusive or cpus > len(self.machine.cpus) or request.mem_per_node == 0
        return LocalShare(gpus, cpus, memory, alone)

    def _cpus_of(self, request: Request, gpus: int) -> int:
        """Cores of a run: what is asked. A run with GPUs that was given all cores by default takes its GPUs' part."""
        cores, procs = len(self.machine.cpus), request.procs_per_node
        asked = request.cpus_per_proc
        if gpus and asked in (None, max(1, cores // procs)):
            return max(1, cores * gpus // len(self.machine.gpus.ids))
        return procs * (asked or 1)

    # under the lock

    def _start_those_that_fit(self) -> None:
        for run in list(self._waiting):
            limit = run.spec.plan.request.array_parallelism
            limited = [other for other in self._running if other.spec.plan.request.array_parallelism is not None]
            if limit is not None and len(limited) >= limit:
                continue
            if not self._fits(run):
                return  # in order: a small run does not overtake a large one
            self._waiting.remove(run)
            self._start(run)

    def _fits(self, run: LocalRun) -> bool:
        share = run.share
        if any(run.share.alone for run in self._running) or (share.alone and self._running):
            return False
        if share.alone:
            return True
        return share.gpus <= len(self._gpus) and share.cpus <= len(self._cpus) and share.memory <= self._memory

    def _take(self, run: LocalRun) -> None:
        """Allocate a run that fits."""
        share = run.share
        run.gpus, self._gpus = tuple(self._gpus[: share.gpus]), self._gpus[share.gpus :]
        run.cpus, self._cpus = tuple(self._cpus[: share.cpus]), self._cpus[share.cpus :]
        self._memory -= share.memory

    def _give_back(self, run: LocalRun) -> None:
        gpus, cpus = {*self._gpus, *run.gpus}, {*self._cpus, *run.cpus}
        self._gpus = [gpu for gpu in self.machine.gpus.ids if gpu in gpus]
        self._cpus = [cpu for cpu in self.machine.cpus if cpu in cpus]
        self._memory += run.share.memory

    def _start(self, run: LocalRun) -> None:
        self._take(run)
        self._running.append(run)
        run.status = JobStatus(State.RUNNING, "RUNNING", start=time.time())
        threading.Thread(target=self._attend, args=(run,), name=f"hpc_hydra {run.id}", daemon=True).start()

    def _release(self, run: LocalRun, status: JobStatus) -> None:
        run.status = replace(status, start=run.status.start)
        self._running.remove(run)
        self._give_back(run)
        if not self._closed:
            self._start_those_that_fit()
        self._changed.notify_all()

    def _stop(self, run: LocalRun, why: State) -> None:
        """Ask a running run to end; its thread kills it later if needed."""
        if run in self._running and run.stopped is None:
            run.stopped = why
            if run.process is not None:
                self._ask(run.process.pid)
                timer = threading.Timer(self.grace, self._kill, args=(run,))
                timer.daemon = True
                timer.start()

    def _ask(self, group: int) -> None:
        """Send SIGTERM to the process group of a run, without waiting."""
        _signal(group, signal.SIGTERM)

    def _force(self, group: int) -> None:
        """Kill a run that did not end when asked."""
        _signal(group, signal.SIGKILL)

    # in the thread of a run

    def _attend(self, run: LocalRun) -> None:
        try:
            status = self._run_to_its_end(run)
        except Exception as error:
            status = JobStatus(State.FAILED, "FAILED", reason=f"not started: {error}")
        with self._changed:
            self._release(run, status)

    def _run_to_its_end(self, run: LocalRun) -> JobStatus:
        _bind(run.cpus or self.machine.cpus)
        with (run.spec.log / f"{run.id}.log").open("ab") as output, self._changed:
            if run.stopped:
                return JobStatus(run.stopped, run.stopped.name)
            process = run.process = subprocess.Popen(
                self._command(run),
                cwd=run.spec.workdir,
                env=self._environment(run),
                stdin=self._stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        limit = run.spec.plan.request.time_limit
        timer = threading.Timer(limit or 0, self._time_is_over, args=(run,))
        timer.daemon = True
        if limit:
            timer.start()
        _await_end(process)
        timer.cancel()
        if process.stdin is not None:
            process.stdin.close()
        if run.stopped is None:
            _signal(process.pid, signal.SIGTERM)  # what it left in the background
        code = process.wait()
        self._await_group(process.pid)
        if run.stopped is not None:
            return JobStatus(run.stopped, run.stopped.name, *self._exit(code))
        state = State.FAILED if code else State.COMPLETED
        return JobStatus(state, state.name, *self._exit(code))

    def _command(self, run: LocalRun) -> list[str]:
        return ["bash", str(run.script), str(run.num)]

    def _environment(self, run: LocalRun) -> dict[str, str]:
        env = cleaned(os.environ)
        if self.machine.gpus.ids and run.spec.plan.request.gpu_request != "none":
            self.machine.gpus.show(env, run.gpus)
        else:
            env.update({name: os.environ[name] for name in DEVICE_VARIABLES if name in os.environ})
        return env

    @staticmethod
    def _exit(code: int) -> tuple[int, int | None]:
        """Return exit code and signal of a script."""
        return (128 - code, -code) if code < 0 else (code, None)

    def _time_is_over(self, run: LocalRun) -> None:
        with self._changed:
            self._stop(run, State.TIMEOUT)

    def _kill(self, run: LocalRun) -> None:
        with self._changed:
            if run in self._running and run.process is not None:
                self._force(run.process.pid)

    def _await_group(self, group: int) -> None:
        """Wait until the whole process group has ended; kill it after the grace period."""
        end = time.monotonic() + self.grace
        while _signal(group, 0) and _runs(group):
            if time.monotonic() > end:
                _signal(group, signal.SIGKILL)
            time.sleep(_STEP)


def _signal(group: int, number: int) -> bool:
    """Whether the process group exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def _runs(group: int) -> bool:
    """Whether a process of the group is not a zombie."""
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    for path in stats:
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_bytes().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in b"ZX":
                return True
    return not stats


def _bind(cpus: Sequence[int]) -> None:
    """Bind this thread and its children to these cores, as far as this process may use them."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Returns when the process has ended, but is not reaped where that can be: its number stays that of its group."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
