"""Runs the packed runs of one allocation, each in a part of its own, as room becomes free. Failures are independent.

    python -m hpc_hydra.node pack

The job script of an allocation executes it. It assigns hosts, cores and GPUs to runs; the scheduler's launch command
confines each run to them. Must not know: any scheduler's commands, what a run computes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.node.finalize import gathered, summary, write
from hpc_hydra.node.packing.manifest import Task, select_pack, tasks_of
from hpc_hydra.node.packing.process_group import dead_children, has_ended, signal_all, spawn_helper, start_in_group
from hpc_hydra.node.packing.requeue import AGAIN, PackRequeue
from hpc_hydra.node.superseded import Jobs
from hpc_hydra.planning.packing import Share
from hpc_hydra.processes import (
    STOP,
    WARN,
    Signals,
    adopt_orphans,
    die_with_parent,
    exit_code,
    name_of,
)
from hpc_hydra.records.attempt import Attempt
from hpc_hydra.records.between_attempts import with_last_attempt
from hpc_hydra.records.files import make_below, read_json
from hpc_hydra.records.frozen_config import RunRecord
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.outcome_index import forget_outcome, note_end
from hpc_hydra.records.types import Outcome
from hpc_hydra.schedulers import capability_defaults
from hpc_hydra.schedulers.capabilities import EndWarning, GracefulCancel, LostHosts, Packing, StepSignals
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.schedulers.resource_slice import FreeNode

POLL = 2.0  # seconds between two checks for cancelled runs
ASK_TIMEOUT = 45.0  # seconds for the scheduler's commands that signal the ranks of a run
PAUSE = 5.0  # seconds without new runs after one was stopped from outside: the allocation may be ending


@dataclass
class PackRunner:
    """The runs of one allocation."""

    sweep: Path
    job: str
    scheduler: str
    id: str  # of the allocation
    at_a_time: int | None
    hosts: list[FreeNode]
    waiting: list[Task]
    requeue: PackRequeue
    first: int  # the run that names the pack
    counts_memory: bool = False
    lifeline: bool = False  # standard input closes with the launcher, and the runs end with this process
    patience: float = 10.0
    running: dict[int, Task] = field(default_factory=dict)  # pid → run
    helpers: dict[int, int] = field(default_factory=dict)  # pid of a helper that signals a run's ranks → pid of the run
    failed: int = 0
    stopped: int | None = None  # the signal that ends the allocation
    ends_by: int | None = None  # the signal of the time limit: no further run is started
    paused_until: float = 0.0
    _cancel_read: int = 0
    _looked: float = 0.0

    @classmethod
    def read(cls, env: Mapping[str, str]) -> PackRunner:
        """Read the pack from the job script's variables. Raises `SweepError`."""
        names = (envvars.SWEEP, envvars.JOB, envvars.SCHEDULER, envvars.PACK, envvars.PACK_JOB)
        values = {name: env.get(name, "") for name in names}
        for name, value in values.items():
            if not value:
                raise SweepError("is not set", where=name, fix="start the job script, which sets it")
        sweep, job = Path(values[envvars.SWEEP]), values[envvars.JOB]
        scheduler, job_id = values[envvars.SCHEDULER], values[envvars.PACK_JOB]
        paths = SweepPaths(sweep)
        data = read_json(paths.pack(job))
        if data is None:
            raise SweepError("the list of packed runs is missing", where=str(paths.pack(job)))
        numbers = select_pack(data["packs"], values[envvars.PACK])
        adapter = adapter_for(scheduler)
        assert isinstance(adapter, Packing)  # or there would be no such script
        hosts = capability_defaults.hosts(adapter, env)
        room = (data["cpus"], data["gpus"], data["mem"])
        nodes = [FreeNode(name, *room) for name in hosts or [""] * data["nodes"]]
        tasks = tasks_of(paths, job, data, numbers)
        restarts = capability_defaults.restarts(adapter, env)
        plans = [task.plan for task in tasks]
        requeue = PackRequeue.of(sweep, job, job_id, scheduler, plans, restarts)
        pack = cls(
            sweep, job, scheduler, job_id, data["at_a_time"], nodes, tasks, requeue, numbers[0],
            counts_memory=bool(data["mem"]), lifeline=bool(env.get(envvars.LIFELINE)),
            patience=adapter.kill_delay,
        )  # fmt: skip
        if requeue.count:
            pack._drop_final()
        return pack

    def _drop_final(self) -> None:
        """After a requeue: drop runs that have a final outcome."""
        cancelled = self._new_cancellations()
        self._cancel_read = 0
        jobs = Jobs(self.sweep)
        for task in list(self.waiting):
            num = task.record.num
            taken = jobs.why_not(num, self.job, task.paths, task.plan) is not None
            if taken or self.requeue.is_final(task.record, cancelled=num in cancelled):
                self.waiting.remove(task)
            elif self.requeue.earlier(task.record):
                self.requeue.close_earlier(task.record, task.plan)
                self.requeue.note(AGAIN, task.record.num)

    # the loop

    def run(self, signals: Signals) -> int:
        """Run until all runs or the allocation have ended; returns the exit code."""
        warns = adapter_for(self.scheduler)
        limit = warns.limit_signal if isinstance(warns, EndWarning) else None
        forward = not (isinstance(warns, EndWarning) and warns.warns_steps)
        while self.running or (self.waiting and not self._is_draining):
            self._start_fitting(signals)
            number = signals.wait(self._pause())
            if number in STOP:
                self._stop(number)
            elif number in WARN:
                self.requeue.warn()
                self.ends_by = self.ends_by or (number if number == limit else None)
                for pid in self.running if forward else ():
                    signal_all(pid, number)
            if self.lifeline and has_ended(0):
                print("hpc_hydra: the launcher is gone: stopping the runs", file=sys.stderr, flush=True)
                self.lifeline = False
                self._stop(signal.SIGTERM)
            self._reap()
            self._handle_cancellations()
            self._kill_overdue()
            if self.stopped and not self.running:
                break
        return self._end()

    def _end(self) -> int:
        """Requeue the allocation if runs are to continue; returns the exit code of the job."""
        code = self.requeue.queue(self.first, len(self.waiting))
        if code is not None:
            return code
        for record, outcome in self.requeue.left:
            self._write(record, outcome)
        if self._is_cancelled:
            self._drop_cancelled({task.record.num for task in self.waiting})
        if self.stopped or self.ends_by:
            return 128 + (self.stopped or self.ends_by or 0)
        adapter = adapter_for(self.scheduler)
        if isinstance(adapter, LostHosts) and any(host.lost for host in self.hosts):
            return adapter.lost_exit_code
        return 1 if self.failed or self.waiting else 0

    @property
    def _is_draining(self) -> bool:
        """Whether no further run is started."""
        return self.ends_by is not None or self.requeue.is_draining

    def _pause(self) -> float:
        """Return the seconds until the next check."""
        now = time.monotonic()
        ends = [task.kill_at for task in self.running.values() if task.kill_at is not None]
        if self.waiting and self.paused_until > now:
            ends.append(self.paused_until)
        return max(0.0, min([POLL, *(end - now for end in ends)]))

    def _start_fitting(self, signals: Signals) -> None:
        if self.stopped or self._is_draining or time.monotonic() < self.paused_until:
            return
        self._drop_too_large()
        for task in list(self.waiting):
            if self.at_a_time is not None and len(self.running) >= self.at_a_time:
                return
            hosts = self._place(task.share)
            if hosts is not None:
                self.waiting.remove(task)
                task.hosts = {index: self.hosts[index].take(task.share) for index in hosts}
                self._start(task, signals)

    def _place(self, share: Share) -> tuple[int, ...] | None:
        """Choose the nodes for a run: the fullest with room, so that whole nodes stay free for large runs."""
        fits = [index for index, host in enumerate(self.hosts) if host.holds(share, self.counts_memory)]
        if len(fits) < share.nodes:
            return None
        fits.sort(key=lambda index: (len(self.hosts[index].gpus), len(self.hosts[index].cpus), index))
        return tuple(sorted(fits[: share.nodes]))

    def _start(self, task: Task, signals: Signals) -> None:
        task.attempt = self.requeue.fresh_attempt(task.record)
        os.umask(task.record.program.umask)
        with contextlib.suppress(FileNotFoundError):  # of the sweep itself: other runs may go on
            make_below(self.sweep, task.paths.attempt(task.attempt))
        forget_outcome(self.sweep, task.record.num, task.attempt, task.paths)
        names = ",".join(self.hosts[index].name for index in task.hosts)
        slices = " ".join(map(str, task.hosts.values()))
        argv = ["bash", str(task.script), str(task.record.num), names, task.attempt, slices]
        self.requeue.note("began", task.record.num)
        pid = start_in_group(argv, task.paths.step_log(task.attempt), signals, self._lifeline_pipe)
        self.running[pid] = task

    @cached_property
    def _lifeline_pipe(self) -> int | None:
        """A pipe without a writer, which closes when this process ends."""
        if not self.lifeline:
            return None
        reader, self._open_end = os.pipe()
        return reader

    def _reap(self) -> None:
        """Collect ended runs. A run has ended, and its slot is free, once its process group is empty."""
        for pid, status in dead_children():
            if pid in self.running:
                self.running[pid].status = status
            elif pid in self.helpers:
                self._ranks_answered(self.helpers.pop(pid), reached=status == 0)
        for pid, task in list(self.running.items()):
            if task.status is None:
                continue
            if signal_all(pid, 0) and task.kills < 2:  # processes that survive SIGKILL are not waited for
                if task.kill_at is None:
                    self._terminate(pid, task)
                continue
            del self.running[pid]
            for index, part in task.hosts.items():
                self.hosts[index].give_back(part, task.share)
            self._ended(task, *exit_code(task.status))

    def _ended(self, task: Task, code: int, signum: int | None) -> None:
        attempt = Attempt(self.sweep, task.record.num, self.job, task.attempt, self.scheduler)
        self._note_lost_hosts(task, code)
        outcome = replace(gathered(attempt, task.record, task.plan, code), job_id=self.id)
        of_itself = outcome.status == "completed" or outcome.rank is not None
        cancelled = task.cancelled or self._is_cancelled
        if self._is_cancelled and outcome.signal == signal.SIGTERM:
            of_itself = False  # the scheduler signalled every process, and the program ended first
        final = self.requeue.outcome_of(
            task.record, task.attempt, outcome, cancelled=cancelled, stopped=self.stopped is not None
        )
        if final is None:
            return
        outcome = final
        if not of_itself and self.stopped and not self.requeue.over and not self._is_cancelled:
            return  # the scheduler reports the reason
        if signum and task.kill_at is not None and not cancelled and not of_itself:  # we signalled its ranks
            why = f"its script was ended by {name_of(signum)}"
            outcome = replace(outcome, status="failed", exit_code=code, signal=signum, reason=why)
        elif self.ends_by and outcome.signal == self.ends_by:
            outcome = replace(outcome, status="timeout", reason="the time limit of its allocation was reached")
        elif outcome.status == "cancelled" and not cancelled:
            self.paused_until = time.monotonic() + PAUSE
        if cancelled and not of_itself:
            outcome = replace(outcome, status="cancelled", reason=task.why_cancelled or outcome.reason)
        self._write(task.record, outcome)

    def _note_lost_hosts(self, task: Task, code: int) -> None:
        """Exclude hosts that could not be reached from further runs."""
        adapter = adapter_for(self.scheduler)
        if not isinstance(adapter, LostHosts) or code != adapter.lost_exit_code:
            return
        for path in task.paths.attempt(task.attempt).glob(adapter.host_ends):
            with contextlib.suppress(HpcHydraError, OSError, KeyError):
                end = read_json(path) or {}
                for host in self.hosts:
                    if end["exit_code"] == code and end["host"] == host.name:
                        host.lost = end["error"] or "unreachable"

    def _drop_too_large(self) -> None:
        lost = [host.lost for host in self.hosts if host.lost]
        left = len(self.hosts) - len(lost)
        for task in [task for task in self.waiting if lost and task.share.nodes > left]:
            self.waiting.remove(task)
            why = f"it needs {task.share.nodes} hosts, but {left} are left ({'; '.join(lost)})"
            outcome = Outcome(task.record.num, "failed", 1, job_id=self.id, reason=why, ended=time.time())
            self._write(task.record, outcome)

    def _write(self, record: RunRecord, outcome: Outcome) -> None:
        self.failed += outcome.status != "completed"
        outcome = with_last_attempt(RunPaths(record.dir), self.requeue.ids, outcome)
        try:
            outcome = write(self.sweep, RunPaths(record.dir), record, outcome)
            note_end(self.sweep, self.job, outcome)
        except OSError as error:
            print(f"hpc_hydra: run {record.num}: the outcome could not be written: {error}", file=sys.stderr)
        self.requeue.note("ended", record.num)
        print(summary(outcome, sweep=self.sweep), flush=True)

    # ending

    def _stop(self, signum: int) -> None:
        self.stopped = self.stopped or signum
        for pid, task in self.running.items():
            self._terminate(pid, task)

    def _terminate(self, pid: int, task: Task) -> None:
        signal_all(pid, signal.SIGTERM)
        task.kill_at = task.kill_at or time.monotonic() + self.patience

    def _kill_overdue(self) -> None:
        for pid, task in self.running.items():
            if task.kill_at is not None and time.monotonic() >= task.kill_at:
                task.forced = True
                if task.ranks_signalled:  # let the launch command kill its ranks: if it were killed, they would remain
                    task.ranks_signalled, task.kill_at = False, None
                    self._terminate(pid, task)
                    continue
                signal_all(pid, signal.SIGKILL)
                self._end_step(task)
                task.kills += 1
                task.kill_at = time.monotonic() + self.patience

    def _end_step(self, task: Task) -> None:
        """End the job step of a killed launch command, which may outlive it."""
        scheduler = adapter_for(self.scheduler)
        if isinstance(scheduler, Packing) and (command := scheduler.end_step_command(task.record.num)) is not None:
            with contextlib.suppress(OSError):  # reaped with the others
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _handle_cancellations(self) -> None:
        now = time.monotonic()
        if now - self._looked < POLL:
            return
        self._looked = now
        numbers = self._new_cancellations()
        self._drop_cancelled(numbers)
        for pid, task in self.running.items():
            if task.record.num in numbers and not task.cancelled:
                task.cancelled = True
                self._stop_run(pid, task)

    def _stop_run(self, pid: int, task: Task) -> None:
        """Stop one run: through its ranks, if the launch command would kill them at once."""
        if not isinstance(adapter_for(self.scheduler), StepSignals) or task.kill_at is not None:
            self._terminate(pid, task)
            return
        task.ranks_signalled, task.kill_at = True, time.monotonic() + ASK_TIMEOUT + self.patience
        argv = [sys.executable, "-m", "hpc_hydra.node", "ask_ranks", self.scheduler, str(pid)]
        self.helpers[spawn_helper(argv)] = pid

    def _ranks_answered(self, pid: int, *, reached: bool) -> None:
        task = self.running.get(pid)
        if task is None or not task.ranks_signalled:
            return
        task.ranks_signalled, task.kill_at = reached, time.monotonic() + self.patience
        if not reached:
            self._terminate(pid, task)

    @property
    def _is_cancelled(self) -> bool:
        """Whether a user cancelled the allocation under a scheduler that only forwards SIGTERM and reports nothing."""
        asks = isinstance(adapter_for(self.scheduler), GracefulCancel)
        return self.stopped == signal.SIGTERM and asks and not self.ends_by and not self.requeue.over

    def _drop_cancelled(self, numbers: set[int]) -> None:
        for task in [task for task in self.waiting if task.record.num in numbers]:
            self.waiting.remove(task)
            why = "cancelled before it began"
            outcome = Outcome(task.record.num, "cancelled", 143, job_id=self.id, reason=why, ended=time.time())
            self._write(task.record, outcome)

    def _new_cancellations(self) -> set[int]:
        """Return runs whose cancellation was requested since the last call."""
        try:
            with SweepPaths(self.sweep).cancelled(self.job).open("rb") as file:
                file.seek(self._cancel_read)
                data = file.read()
        except OSError:
            return set()
        whole = data[: data.rfind(b"\n") + 1]
        self._cancel_read += len(whole)
        return {int(word) for word in whole.split() if word.isdigit()}


def main(argv: Sequence[str]) -> int:
    """Run the pack; returns the exit code. ``--failed CODE``: record that no run could be started."""
    signals = Signals()
    adopt_orphans()  # processes left by a killed script are reaped here
    try:
        pack = PackRunner.read(os.environ)
        if pack.lifeline:
            die_with_parent(os.getppid(), signal.SIGTERM)
        if argv[:1] == ["--failed"]:
            return _none_started(pack, int(argv[1]))
        return pack.run(signals)
    except (HpcHydraError, OSError) as error:
        print(f"hpc_hydra: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, HpcHydraError) else 1


def _none_started(pack: PackRunner, code: int) -> int:
    reason = os.environ.get(envvars.REASON, f"the job script failed with exit code {code}")
    for task in pack.waiting:
        outcome = Outcome(task.record.num, "failed", code, job_id=pack.id, reason=reason, ended=time.time())
        pack._write(task.record, outcome)
    return (
        1 if code == capability_defaults.requeue_exit_code(adapter_for(pack.scheduler)) else code
    )  # or the scheduler would requeue it
