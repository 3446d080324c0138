"""Submit the jobs of a batch, watch them until they end, and handle interrupts.

Each action is recorded in the manifest before and after it happens. Must not know: Hydra, contents of scripts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGHUP, SIGINT

from hpc_hydra import envvars
from hpc_hydra.config.schema import LaunchConfig
from hpc_hydra.errors import SchedulerError
from hpc_hydra.launcher import scripts
from hpc_hydra.launcher.interrupt import Interrupts
from hpc_hydra.records.batching import Group, Run
from hpc_hydra.records.files import GONE, into_new_place, is_gone
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest, read_manifest
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.schedulers.base import JobSpec, State, SubmitError, Submitter, queue_id
from hpc_hydra.sweep.logs import RecentOutput
from hpc_hydra.sweep.status import why_cancelled
from hpc_hydra.sweep.store import command
from hpc_hydra.sweep.succession import late
from hpc_hydra.sweep.watch import Watched, Watcher
from hpc_hydra.ui.progress import Reporter, complain, interruption, log_hint, rows_of, say, shown_ids, submission
from hpc_hydra.ui.run_table import not_repeated, numbers, printable

NO_ROOM = 120.0  # seconds of retries at a submit limit while no job of ours can free a place in the queue
RETRY = (1.0, 30.0)  # initial and maximum seconds between retries at a submit limit
LEAVING = 60.0  # seconds that cancelled jobs may need to leave the queue
HUNG_UP = "SIGHUP: the terminal was closed"


@dataclass
class _QueuedJob:
    """A job that is not submitted yet."""

    group: Group
    spec: JobSpec
    script: Path
    part: int = 0  # number of parts of the job that were submitted before


class Session:
    """The jobs of one batch, from submission until the last run has ended."""

    def __init__(
        self,
        root: Path,
        jobs: Sequence[tuple[Group, JobSpec, Path]],
        submitters: Mapping[str, Submitter],
        manifest: Manifest,
        launch: LaunchConfig,
        there: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """
        Args:
            there: by scheduler, ids of jobs of the same sweep in its queue; new jobs may have to start after their end.
        """
        self.root, self.submitters, self.manifest, self.launch = root, submitters, manifest, launch
        self.runs = [run for group, _, _ in jobs for run in group.runs]
        self.reporter = Reporter(not_repeated(self.runs), recent=RecentOutput())
        self.watchers = {name: Watcher(s, SweepPaths(root).jobs) for name, s in submitters.items()}
        self.outcomes: dict[int, Outcome] = {}
        self._queue = [_QueuedJob(*job) for job in jobs]
        self._refusals: list[tuple[str, SubmitError]] = []  # key of the job, why
        self._reported = 0  # number of reported refusals
        self._hopeless: set[str] = set()  # ids of jobs reported as never starting
        self._stopping = False
        self._follows = {spec.key: spec.follows for _, spec, _ in jobs}
        self._ids: dict[str, list[tuple[str, ...]]] = {}  # key of a submitted job → ids in the queue
        self._there = {name: [(id_,) for id_ in ids] for name, ids in (there or {}).items()}
        self._parts: dict[str, str] = {}  # key of a job → key of the array that it is a part of
        self._submitting: JobSpec | None = None  # the job whose submit command is running
        self._interrupts = Interrupts(self._leave_at_once)

    def run(self) -> dict[int, Outcome] | None:
        """Submit, wait for all runs, and return their outcomes by number. None if they continue in the background.

        Raises:
            SubmitError: nothing could be submitted.
            KeyboardInterrupt: a signal was received; the jobs are cancelled or left running as configured.
        """
        with self._interrupts:
            try:
                self._submit_all()
                if self._refusals and not self._watched:
                    raise self._nothing_submitted()
                if self.launch.bg and self._interrupts.received is None:
                    self.manifest.detached()
                    say(f"in the background: {shown_ids(self._active)}")
                    return None
                self.reporter.start()
                self._watch()
            except BaseException as error:
                self.reporter.stop()
                self._close()
                if isinstance(error, KeyboardInterrupt):
                    self.conclude()
                raise
            self.reporter.stop()
        if is_gone(self.root):
            fix = f"hpc-hydra status NEW_PLACE; {into_new_place(self.root)}"
            complain(f"hpc_hydra: {self.root}: {GONE}; the following is the last known state\n  Try: {fix}")
            return self.outcomes
        self.manifest.finished(
            failed=sum(each.status not in ("completed", "cancelled") for each in self.outcomes.values())
        )
        return self.outcomes

    def conclude(self, best: str | None = None) -> int:
        """Print all runs and what failed, also before all have ended. Returns 1 if an outcome is not completed."""
        from hpc_hydra.ui import summary_table

        rows, outcomes = rows_of(self.runs, self._watched, self.outcomes)
        summary_table.conclude(rows, outcomes, best, sweep=self.root)
        return int(any(outcome.status != "completed" for outcome in outcomes.values()))

    @property
    def _watched(self) -> list[Watched]:
        return [w for watcher in self.watchers.values() for w in watcher.watched.values()]

    @property
    def _active(self) -> list[Watched]:
        return [w for watcher in self.watchers.values() for w in watcher.active]

    # submission

    def _submit_all(self) -> None:
        no_room_since: float | None = None
        pause = RETRY[0]
        while self._queue and not self._leaving():
            error = self._submit(self._queue[0])
            if error is None:
                self._queue.pop(0)
                no_room_since, pause = None, RETRY[0]
                continue
            if error.kind == "array" and self._queue[0].spec.elements > 1:
                each = "allocation" if self._queue[0].spec.packs else "run"
                complain(f"{error.what}: each {each} is a job of its own")
                self._queue[:1] = self._one_by_one(self._queue[0])
                continue
            if error.kind != "limit":
                self._refuse(self._queue.pop(0), error)
                continue
            now = time.monotonic()
            if no_room_since is None:
                complain(f"submit limit reached, retrying: {error.what}")
            no_room_since = now if no_room_since is None or self._active else no_room_since
            if now - no_room_since > NO_ROOM:
                self._refuse(self._queue.pop(0), error)
                continue
            end = now + pause
            while time.monotonic() < end and not self._leaving():
                self._step()
                self._interrupts.wait(min(1.0, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, RETRY[1])
        for waiting in self._queue if self._stopping else ():
            self._end(
                waiting.group.runs, "cancelled", "not submitted, as another run had failed (launch.on_failure=stop)"
            )
        if self._stopping:
            self._queue.clear()

    def _submit(self, waiting: _QueuedJob) -> SubmitError | None:
        """Try to submit once. Watch the runs that were accepted, and leave the others in ``waiting``."""
        self._let_follow(waiting)
        group, spec = waiting.group, waiting.spec
        scheduler = spec.plan.request.scheduler
        key = spec.key if not waiting.part else f"{spec.key}.{waiting.part}"
        job = Job(key=key, plan=spec.environ.get(envvars.PLAN, ""), runs=spec.runs, tag=spec.tag, packs=spec.packs)
        self.manifest.submitting(job, self.submitters[scheduler].label or scheduler)
        self._submitting = spec
        try:
            ids = self.submitters[scheduler].submit(spec, waiting.script)
        except SubmitError as error:
            ids = error.ids
            if not ids:
                self.manifest.refused(job, error.what)
                self._submitting = None
                self._retag(waiting, spec)
                return error
            self._submitted(replace(job, runs=spec.runs[: len(ids)], ids=ids), group, scheduler)
            rest = spec.runs[len(ids) :]
            waiting.part += 1
            waiting.group = replace(group, runs=tuple(r for r in group.runs if r.num in rest))
            self._retag(waiting, spec.without(len(ids)))
            return error if rest else None
        self._submitted(replace(job, ids=ids), group, scheduler)
        return None

    def _one_by_one(self, waiting: _QueuedJob) -> list[_QueuedJob]:
        """Return single jobs for the elements of an array that the scheduler refused."""
        adapter = self.submitters[waiting.spec.plan.request.scheduler].adapter
        jobs = scripts.one_by_one(waiting.group, waiting.spec, adapter)
        self._follows |= {spec.key: spec.follows for _, spec, _ in jobs}
        self._parts |= {spec.key: waiting.spec.key for _, spec, _ in jobs}
        return [_QueuedJob(*job) for job in jobs]

    def _let_follow(self, waiting: _QueuedJob) -> None:
        """Add a dependency on the job that it follows, or on the nearest predecessor that is in the queue."""
        spec, key = waiting.spec, waiting.spec.follows
        while key and key != scripts.EARLIER and key not in self._ids:
            key = self._follows.get(key, "")
        if key:
            scheduler = spec.plan.request.scheduler
            before = self._there[scheduler] if key == scripts.EARLIER else self._ids[key]
            spec = scripts.following(spec, waiting.script, before, self.submitters[scheduler].adapter)
        waiting.spec = replace(spec, follows="")

    def _retag(self, waiting: _QueuedJob, spec: JobSpec) -> None:
        """Give the next try another tag, in the manifest and in the script, by which the job is found in the queue."""
        waiting.spec = replace(spec, tag=scripts.tag(spec.key))
        scripts.retag(waiting.script, spec.tag, waiting.spec.tag)

    def _submitted(self, job: Job, group: Group, scheduler: str) -> None:
        self.manifest.submitted(job)
        if not self._ids:
            say(log_hint(self.root))
        base = job.key.partition(".")[0]
        for key in filter(None, (base, self._parts.get(base))):
            self._ids.setdefault(key, []).append(tuple(dict.fromkeys(map(queue_id, job.ids))))
        self._submitting = None
        wanted = set(job.runs)
        new = self.watchers[scheduler].add(job.key, [r for r in group.runs if r.num in wanted], job.ids)
        say(f"{job.key}: {submission(job, group.plan)} submitted to {scheduler}, {shown_ids(new)}")
        self._report_refusals()

    def _refuse(self, waiting: _QueuedJob, error: SubmitError) -> None:
        self._refusals.append((waiting.spec.key, error))
        self._report_refusals()
        self._end(waiting.group.runs, "failed", f"not submitted: {error.what}")

    def _report_refusals(self) -> None:
        """Report new refusals, once a job is submitted; if none is, `run` raises them as one error."""
        for key, error in self._refusals[self._reported :] if self._watched else ():
            complain(f"hpc_hydra: {key} is not submitted: {error}")
            self._reported += 1

    def _nothing_submitted(self) -> SubmitError:
        """Return one error for all refusals."""
        _, first = self._refusals[0]
        others = list(dict.fromkeys(error.what for _, error in self._refusals if error.what != first.what))
        if not others:
            return first
        what = "; ".join([first.what, *others[:4], *([f"and {len(others) - 4} more"] if len(others) > 4 else [])])
        return SubmitError(what, where=first.where, fix=first.fix, kind=first.kind)

    def _end(self, runs: Sequence[Run], status: str, reason: str) -> None:
        """Set the outcomes of runs that were not submitted."""
        for run in runs:
            self.outcomes[run.num] = Outcome(
                num=run.num,
                status="cancelled" if status == "cancelled" else "failed",
                exit_code=1,
                reason=reason,
            )

    # watching

    def _watch(self) -> None:
        while True:
            self._step()
            if self._interrupts.received is not None:
                self._interrupted()
            active = self._active
            if not active:
                return
            self._interrupts.wait(min(w.tick for w in self.watchers.values() if w.active))

    def _step(self) -> None:
        for watcher in self.watchers.values():
            changed = self._changed(watcher)
            for watched in changed:
                if watched.outcome is not None:
                    self.outcomes[watched.run.num] = watched.outcome
                    if watched.outcome.status != "completed" and self.launch.on_failure == "stop":
                        self._stop(watched)
        self._report_hopeless()
        message = next((w.message for w in self.watchers.values() if w.message), None)
        self.reporter.show(self._watched, message, self.runs, self.outcomes)

    def _changed(self, watcher: Watcher) -> list[Watched]:
        """Report the runs whose state changed, with who cancelled them if one of our commands did, and return them."""
        changed = watcher.step()
        cancelled = [w for w in changed if w.outcome is not None and w.outcome.status == "cancelled"]
        if cancelled:
            state = read_manifest(self.root)
            for watched in cancelled:
                if watched.outcome is not None and (whom := why_cancelled(state, watched.id, watched.outcome)):
                    watched.outcome = replace(watched.outcome, reason=whom)
        self.reporter.changed(changed)
        return changed

    def _report_hopeless(self) -> None:
        """Report each job that can never start, once."""
        hopeless: dict[tuple[str, str], list[Watched]] = {}
        for watched in self._active:
            if watched.status.never and watched.status.state is State.PENDING:
                id_ = queue_id(watched.id)
                if id_ not in self._hopeless:
                    hopeless.setdefault((watched.job, watched.status.reason), []).append(watched)
        for (_, reason), several in hopeless.items():
            self._hopeless |= {queue_id(watched.id) for watched in several}
            what = f"job {shown_ids(several)} ({numbers(watched.run for watched in several)}), {reason}"
            complain(f"hpc_hydra: this will never start as it is: {what}\n  Try: {command('cancel', self.root)}")

    def _stop(self, failed: Watched) -> None:
        if self._stopping:
            return
        self._stopping = True
        complain(f"run {failed.run.num} failed: cancelling the others (launch.on_failure=stop)")
        self._cancel(why=f"run {failed.run.num} failed (launch.on_failure=stop)")

    # leaving

    def _leaving(self) -> bool:
        return self._stopping or self._interrupts.received is not None

    def _interrupted(self) -> None:
        """Handle a signal: ask, cancel or detach. Returns only if the user chose to continue."""
        received = self._interrupts.received
        assert received is not None
        self.reporter.stop()
        complain(interruption(received.name, self._active))
        for waiting in self._queue:
            complain(f"not submitted: {waiting.spec.key} ({numbers(waiting.group.runs)})")
        choice = "detach" if received is SIGHUP else self.launch.on_interrupt
        if choice == "ask":
            choice = self._ask() if received is SIGINT else "cancel"
        if choice == "wait":
            self._interrupts.again()
            self.reporter.start()
            return
        why = _why(self._interrupts)
        if choice == "detach":
            self._detach(why)
        else:
            self._cancel(why=why)
            self._await_gone()
        raise KeyboardInterrupt

    def _ask(self) -> str:
        """Ask the user at the terminal. Without one, cancel; if it is closed meanwhile, detach."""
        with suppress(OSError, ValueError):
            if sys.stdin.isatty() and sys.stderr.isatty():
                can_leave = any(w.submitter.outlives_launcher for w in self.watchers.values() if w.active)
                choices = ("cancel", "detach", "wait") if can_leave else ("cancel", "wait")
                leave = " [d]etach and leave them running," if can_leave else ""
                while True:
                    print(f"[c]ancel them,{leave} or [w]ait on? ", end="", file=sys.stderr)
                    sys.stderr.flush()
                    answer = self._interrupts.answer(sys.stdin.fileno(), 1.0, self._all_ended)
                    if answer is None:
                        complain("\nall runs have ended meanwhile")
                        return "wait"
                    if not answer:
                        break
                    for choice in choices:
                        if answer.strip().lower() and choice.startswith(answer.strip().lower()):
                            return choice
                    if answer.strip():
                        complain(f"{printable(answer.strip())!r} is none of {', '.join(choices)}")
        return "detach" if self._interrupts.hung_up else "cancel"

    def _all_ended(self) -> bool:
        """Update all states, and return whether all runs have ended."""
        self._step()
        return not self._active and not self._queue

    def _detach(self, why: str) -> None:
        """Leave the runs that outlive this process; cancel the others and wait for their end."""
        local = [w for w in self.watchers.values() if w.active and not w.submitter.outlives_launcher]
        if local:
            complain(f"runs without a scheduler cannot outlive this command; cancelling them ({why})")
            self._cancel(local, why=why)
            self._await_gone(local)
        if (active := self._active) or not local:
            self.manifest.detached(why)
            complain(f"left running: {shown_ids(active)}\n{log_hint(self.root)}")

    def _cancel(self, watchers: Iterable[Watcher] | None = None, *, why: str) -> None:
        for watcher in self.watchers.values() if watchers is None else watchers:
            watcher.follow(watcher.active)
            if not (ids := [w.id for w in watcher.active]):
                continue
            try:
                if not watcher.submitter.outlives_launcher:
                    self.manifest.cancelled(ids, why)  # before the call, which waits for the end of the runs
                    watcher.submitter.cancel(ids)
                    continue
                watcher.submitter.cancel(ids)
                if more := late(watcher.submitter, self.root, [(w.job, w.id) for w in watcher.active]):
                    watcher.submitter.cancel(more)
                self.manifest.cancelled([*ids, *more], why)
            except SchedulerError as error:
                complain(f"hpc_hydra: could not cancel: {error}\n  jobs: {shown_ids(watcher.active)}")
                watcher.abandoned = True

    def _await_gone(self, among: Iterable[Watcher] | None = None) -> None:
        end = time.monotonic() + LEAVING
        watchers = [w for w in (self.watchers.values() if among is None else among) if w.active and not w.abandoned]
        for watcher in watchers:
            watcher.grace = 1.0
        self.reporter.start()
        while time.monotonic() < end and any(w.active for w in watchers):
            for watcher in watchers:
                watcher.hurry()
                self._changed(watcher)
            self.reporter.show(self._watched, None, self.runs, self.outcomes)
            self._interrupts.pause(0.5 if any(w.active for w in watchers) else 0)
        self.reporter.stop()
        remaining = [w for watcher in watchers for w in watcher.active if w.status.state is not State.UNKNOWN]
        if remaining:
            complain(f"cancelled, but still in the queue after {int(LEAVING)} s: {shown_ids(remaining)}")

    def _close(self) -> None:
        for submitter in self.submitters.values():
            with suppress(Exception):
                submitter.close(cancel=True)

    def _leave_at_once(self) -> str:
        """Prepare an immediate exit, from a signal handler. Return the message to print."""
        why = _why(self._interrupts)
        for watcher in self.watchers.values():
            if watcher.active and not watcher.submitter.outlives_launcher:  # they end with this process
                with suppress(Exception):
                    self.manifest.cancelled([w.id for w in watcher.active], why)
        for submitter in self.submitters.values():
            submitter.abandon()
        if any(submitter.outlives_launcher for submitter in self.submitters.values()):
            with suppress(Exception):
                self.manifest.detached(why)
        lines = [f"left at once; may be running: {shown_ids(self._active)}"]
        if (spec := self._submitting) is not None:
            runs = f"run{'s' * (len(spec.runs) > 1)} {' '.join(map(str, spec.runs[:10]))}{' …' * (len(spec.runs) > 10)}"
            lines.append(f"being submitted: {spec.key} ({runs}), which the commands below find by its tag {spec.tag}")
        if self.reporter.is_terminal:
            lines.append("\x1b[?25h")  # show the cursor, which the table hides
        return "\n".join([*lines, log_hint(self.root), ""])


def _why(interrupts: Interrupts) -> str:
    """Return why the launcher exits, for the manifest."""
    received = interrupts.received
    return HUNG_UP if interrupts.hung_up or received is None else f"{received.name} to the launcher"
