"""Run one job attached to this console, in an allocation that the scheduler creates for it.

The job script is the one that would be submitted. Without a launch directory, its directory is removed at the end.
Must not know: any scheduler's commands (the adapter does), the syntax of the command line.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra import envvars
from hpc_hydra.cli.command import check_exists
from hpc_hydra.cli.console import Streams, run_attached
from hpc_hydra.config.schema import THIS_MACHINE, LaunchConfig
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import ConfigError, HpcHydraError, SchedulerError
from hpc_hydra.launcher import checks, scripts
from hpc_hydra.launcher.console_output import ALL, ConsoleOutput
from hpc_hydra.launcher.prepare import Prepared, Preparer
from hpc_hydra.launcher.temporary import remove, shared_directory
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import Logging, Plan
from hpc_hydra.processes import user_name
from hpc_hydra.records.batching import Group, Run
from hpc_hydra.records.files import keep_private, on_disk, read_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.job_log import why_not_started
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.types import Job
from hpc_hydra.schedulers import capability_checks, capability_defaults, commands, registry
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.batch_queue import refused
from hpc_hydra.schedulers.capabilities import Attach, JobSteps, NestedQueue
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.local_base import ids_of, run_id
from hpc_hydra.schedulers.watcher import environment
from hpc_hydra.system import allocation
from hpc_hydra.ui import dry_run
from hpc_hydra.ui.dry_run import told
from hpc_hydra.ui.progress import complain, say, size

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

JOB, PLAN = "job0", "plan0"
LOOK_AFTER = 10.0  # seconds until the scheduler is asked why the allocation is still pending
QUERY = 30.0  # timeout of that query, seconds


@dataclass(frozen=True)
class Attached:
    """An attached run that is planned; nothing is written yet."""

    adapter: Scheduler
    run: Run
    spec: JobSpec
    script: str
    command: list[str]
    env: Mapping[str, str]
    streams: Streams
    notes: tuple[str, ...]
    planned: Plan  # before patterns of its logs were made absolute


def launch(loader: ConfigLoader, master: DictConfig, task: Program) -> int | None:
    """Compose and plan the run, then run it attached or print the dry run. Returns the exit code of the user's command.

    Returns None, without doing anything, if the scheduler does not support attached jobs, or the person's defaults ask
    for a job of its own.

    Raises `HpcHydraError`, and Hydra's exceptions for invalid overrides.
    """
    checks.refuse_on_a_rank()
    keep = _keeps(master)
    _prefix_ranks(master)
    with _directory(master, keep=keep) as root, Preparer(loader, master, attached=True).claimed() as preparer:
        prepared = preparer.prepare_as_composed()
        if is_submitted(prepared.settings.launch):
            return None
        preparer.check_files(prepared)
        attached = _decide(prepared, task, root if root is not None else preparer.root, keep=keep)
        if attached is None:
            return None
        required = checks.check_required(prepared.missing, prepared.settings.launch)
        attached = replace(attached, notes=(*attached.notes, *required))
        check_script(task, master)
        if prepared.settings.launch.dry_run:
            _show(attached, task, preparer, plain=prepared.settings.launch.dry_run == "script")
            return 0
        _check_places(attached, keep=keep)
        scripts.check_output(prepared.settings.launch.output_script, 1)
        if prepared.settings.launch.confirm_above is not None:
            from hpc_hydra.ui import cost

            cost.confirm([Group(attached.run.plan, (attached.run,))], prepared.settings.launch.confirm_above)
        with on_disk(attached.spec.sweep, "launch.launch_dir=PATH of a writable directory with free space"):
            _write(attached, prepared, task)
        for note in attached.notes:
            complain(f"note: {note}")
        if master.scheduler.kind == "auto":
            complain(f"{_detected(master, prepared)}: {size(attached.run.plan)}")
        job = (Group(attached.run.plan, (attached.run,)), attached.spec, SweepPaths(attached.spec.sweep).script(JOB))
        pattern = prepared.settings.launch.output_script
        with on_disk(attached.spec.sweep, "launch.output_script=PATH in a writable directory"):
            scripts.write([job], {attached.adapter.name: attached.adapter}, pattern)
        if pattern not in (None, "-"):
            complain(f"note: {scripts.output(str(pattern), 0)}: {scripts.reads(attached.spec.sweep)}")
        if attached.run.plan.logging.verbose:
            complain(told([job]))
        try:
            with _recorded(attached):
                return _execute(attached)
        finally:
            _keep_hostlist(attached, keep=keep)


def is_submitted(launch: LaunchConfig | DictConfig) -> bool:
    """Whether a single run is submitted as a job instead of attached. Notes it if nobody has asked for that alone."""
    if launch.bg or launch.setup_only:
        return True
    # the job starts later, or from its own copy of the code
    key = "after" if launch.after else "snapshot" if launch.snapshot != "none" else None
    if key and not launch.dry_run:
        complain(f"note: launch.{key} makes it a job of its own: `hpc-hydra logs` shows its output; its input is empty")
    return key is not None


def check_script(task: Program, master: DictConfig) -> None:
    """Check that the script exists; a dry run, which may be on another machine than the launch, only prints a note.

    Not checked: scripts that may be in the image of a container, or still be written by another job.

    Raises `ConfigError`.
    """
    from omegaconf import OmegaConf

    if OmegaConf.select(master, "container.name", default="none") != "none":
        return
    if master.launch.after or master.scheduler.get("dependency"):
        return
    try:
        check_exists(task)
    except ConfigError as error:
        if not master.launch.dry_run:
            raise
        complain(f"note: {error.where}: {error.what}: without it the launch is refused")


def _detected(master: DictConfig, prepared: Prepared) -> str:
    """Return the scheduler that detection chose, with the machine if that is a known one."""
    scheduler, system = prepared.settings.scheduler.name, prepared.settings.system
    machine = f"{system.name}, " if master.system.kind == "auto" and system.kind == "known" else ""
    return f"{machine}{scheduler} (detected)"


def _keeps(master: DictConfig) -> bool:
    """Whether the launch directory is kept. A script written to a file needs it to run again."""
    from omegaconf import open_dict, read_write

    script = master.launch.output_script
    if master.launch.launch_dir is None and script not in (None, "-") and not master.launch.dry_run:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = "true"
    return master.launch.launch_dir is not None


def _prefix_ranks(master: DictConfig) -> None:
    """Begin each line with its rank for ``logging.console=all``: the console shows all ranks in any case."""
    from omegaconf import open_dict, read_write

    if master.logging.console != "all":
        return
    if master.rendezvous.name == "mpi":
        raise ConfigError(
            "MPI's ranks write to this console themselves, without their rank",
            where="logging.console",
            fix="leave it out, or logging.out='rank_{rank}.log' for a file each",
        )
    with read_write(master), open_dict(master):
        master.logging.rank_prefix = True


@contextlib.contextmanager
def _directory(master: DictConfig, *, keep: bool) -> Iterator[Path | None]:
    """Provide a temporary launch directory, removed at the end, or None if the launch directory is kept."""
    from omegaconf import open_dict, read_write

    dry = bool(master.launch.dry_run)
    if keep:
        yield None
        return
    temporary = Path(tempfile.gettempdir(), "hpc_hydra") if dry else shared_directory(str(master.scheduler.name))
    given = master.launch.launch_dir
    try:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = str(temporary)
        yield temporary
    finally:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = given
        if not dry:
            remove(temporary)


def _decide(prepared: Prepared, task: Program, root: Path, *, keep: bool) -> Attached | None:
    [run] = prepared.runs
    if not keep:  # the run's directory, which patterns are relative to, is removed
        run = replace(run, plan=replace(run.plan, logging=_in_this_directory(run.plan.logging)))
    plan = run.plan
    adapter = registry.adapter_for(plan.request.scheduler)
    capability_checks.check(adapter, task_request(plan))
    if plan.request.max_requeues:
        raise ConfigError(
            "a run attached to this console cannot be requeued", where="launch.max_requeues", fix="launch.bg=true"
        )
    if prepared.settings.logging.console not in (None, "all"):
        raise ConfigError(
            "an attached command shows the output of all ranks",
            where="logging.console",
            fix="leave it out, or logging.console=all for each line with its rank",
        )
    spec = scripts.spec(Group(plan, (run,)), JOB, PLAN, root, task)
    marks = [envvars.ATTACHED] + [envvars.TEMPORARY] * (not keep)
    spec = replace(
        spec,
        environ={**spec.environ, **dict.fromkeys(marks, "1")},
        comment=f"command: {shlex.join(task.argv)}",
        attached=True,
    )
    script = SweepPaths(root).script(JOB)
    held = allocation.current(adapter, prepared.settings.launch.inside)
    spec = replace(spec, allocation=held)
    attach_notes: tuple[str, ...] = ()
    env = cleaned(os.environ, keep=capability_defaults.inherited_variables(adapter, plan.request))
    if held is not None and isinstance(adapter, JobSteps):
        from hpc_hydra.schedulers.allocation_queue import StepSubmitter

        StepSubmitter(adapter, held).check(task_request(plan))
        command, env = ["bash", str(script)], adapter.step_environment(os.environ, task_request(plan), held)
    else:
        if not isinstance(adapter, Attach):
            return None
        around = os.environ if isinstance(adapter, NestedQueue) else env
        command = adapter.attach_command(script, spec, around)
        attach_notes = adapter.attach_notes(plan.request)
        if command[:1] == ["bash"] and isinstance(adapter, NestedQueue):
            env = dict(os.environ)
    if command[0] == "bash":
        command = ["bash", str(script), str(run.num)]  # how `processes.local_runs` finds it
    notes = (*prepared.notes, *adapter.notes(plan.request), *attach_notes)
    notes += allocation.notes(prepared.settings, held)
    if plan.request.time_limit is not None and (held is not None or not adapter.has_queue):
        notes += ("resources.time_limit has no effect on a run at this console (with -m the launcher enforces it)",)
    if plan.hang_after is not None:
        notes += ("launch.hang_after has no effect on a run at this console: launch.bg=true",)
    streams = replace(_streams(plan.logging, root, keep), careless=adapter.has_queue)
    return Attached(adapter, run, spec, adapter.script(spec), command, env, streams, notes, prepared.runs[0].plan)


def _in_this_directory(logging: Logging) -> Logging:
    """Return the settings with patterns relative to the current directory."""
    out, err = (None if text is None else str(Path.cwd() / text) for text in (logging.out, logging.err))
    return replace(logging, out=out, err=err)


def _streams(logging: Logging, root: Path, keep: bool) -> Streams:
    """Files that receive the output besides the console: requested ones, else two in a kept launch directory."""
    if logging.by_ranks:  # the ranks write them
        return Streams(color_stderr=logging.color_stderr)
    out, err = RunPaths(root).console

    def path(pattern: str | None, default: Path) -> Path | None:
        if pattern is None:
            return default if keep else None
        return root / pattern.replace("{num}", "0").replace("{user}", user_name())

    return Streams(path(logging.out, out), path(logging.err, err), logging.color_stderr)


def _show(attached: Attached, task: Program, preparer: Preparer, *, plain: bool) -> None:
    """Print the dry run; ``plain``: the script alone."""
    job = (Group(attached.run.plan, (attached.run,)), attached.spec, SweepPaths(attached.spec.sweep).script(JOB))
    adapters = {attached.run.plan.request.scheduler: attached.adapter}
    if plain:
        for note in attached.notes:
            complain(f"note: {note}")
        say(scripts.plain([job], adapters))
        return
    facts = dry_run.Facts(
        program=task,
        origins=lambda run, spec, script: preparer.origins(attached.planned, spec.plan, script),
        filled=preparer.filled if task.fill else lambda run, words: words,
        by=attached.command,
    )
    say(dry_run.show(adapters, [job], attached.notes, facts))


def _write(attached: Attached, prepared: Prepared, task: Program) -> None:
    run, sweep = attached.run, attached.spec.sweep
    from hpc_hydra.launcher.reuse import take_over  # not needed for a dry run

    with take_over(sweep, [run], registry.submitter, "launch.launch_dir"):
        if run.plan.has_secrets:
            keep_private(SweepPaths(sweep).meta)
        freezer = Freezer(sweep, task)
        base = prepared.bases[run.base]
        key = freezer.add_base(base.cfg, base.applied)
        freezer.add_run(run.num, run.overrides, plan=PLAN, base=key, seed=run.seed, dir=run.dir)
        freezer.write_plans({PLAN: run.plan})
        freezer.flush()
        freezer.close()
    SweepPaths(sweep).jobs.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _recorded(attached: Attached) -> Iterator[None]:
    """Record the launcher and the job in the manifest, so that other processes can wait for the run and cancel it."""
    from hpc_hydra.records.manifest import Manifest  # not needed for a dry run

    spec, run, name = attached.spec, attached.run, attached.adapter.name
    if attached.command[0] == "bash" and attached.adapter.has_queue:
        name += registry.STEP
    manifest, job = Manifest(spec.sweep), Job(JOB, PLAN, (run.num,), spec.tag)
    argv = masked_words(sys.orig_argv, run.plan.secrets)
    manifest.started(argv=argv, host=socket.gethostname(), pid=os.getpid(), runs=1, attached=True)
    manifest.submitting(job, name)
    if not registry.has_queue(name):
        manifest.submitted(replace(job, ids=ids_of(spec)))
    try:
        yield
    except SchedulerError as error:
        manifest.refused(job, error.what)
        raise
    finally:
        with contextlib.suppress(HpcHydraError):  # the directory may be gone
            outcome = read_json(RunPaths(run.dir).outcome)
            manifest.finished(failed=int(outcome is None or outcome["status"] != "completed"))


def _execute(attached: Attached) -> int:
    try:
        with warn_if_stuck(attached), _shown(attached):
            ended = run_attached(
                attached.command, env=attached.env, cwd=attached.spec.workdir, streams=attached.streams
            )
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{attached.command[0]} is not installed; does this machine have {attached.adapter.name}?",
            where="scheduler",
            fix=f"scheduler={THIS_MACHINE}, or launch.dry_run=true to print what would be run",
        ) from error
    if ended.exit_code and ended.signal is None and not RunPaths(attached.run.dir).outcome.exists():
        check_refusal(attached.adapter, attached.command, SweepPaths(attached.spec.sweep).script(JOB), attached.spec)
        if why := _no_python(attached.spec):
            complain(f"hpc_hydra: no rank was started: {why}")
    if ended.signal == signal.SIGHUP:
        with contextlib.suppress(OSError):  # the terminal may be gone
            complain("hpc_hydra: stopped by SIGHUP; launch.bg=true submits a job that outlives its terminal")
    if ended.signal is not None:
        outcome = read_json(RunPaths(attached.run.dir).outcome)
        own_end = outcome is not None and (outcome["status"] == "completed" or outcome["rank"] is not None)
        if not own_end:  # the exit code is the scheduler's
            return 128 + ended.signal
    return ended.exit_code


def check_refusal(adapter: Scheduler, command: Sequence[str], script: Path, spec: JobSpec) -> None:
    """Raise `SubmitError` if ``command`` has failed because the scheduler refuses the request.

    The command's own message is on the console, where only the user reads it, so the scheduler is asked again.
    """
    if not isinstance(adapter, Attach) or command[0] == "bash":  # bash: no allocation is requested
        return
    argv = adapter.trial_command(script, spec)
    if argv is None:
        return
    with contextlib.suppress(commands.NotHere):
        answer = commands.run(argv, env=environment(adapter), timeout=QUERY)
        if answer.ok or answer.code is None or adapter.classify(answer.err) == "transient":
            return
        raise refused(adapter, command[0], answer.message, spec.plan.request)


def _no_python(spec: JobSpec) -> str | None:
    """Return why the script's Python could not record how the run ended, if it cannot on this host either."""
    python, *words, _ = spec.finish_command
    path = os.pathsep.join(filter(None, (*spec.pythonpath, os.environ.get("PYTHONPATH"))))
    try:
        answer = commands.run([python, *words], env={**os.environ, "PYTHONPATH": path}, timeout=QUERY)
    except commands.NotHere:
        return why_not_started([f"{python}: No such file or directory"])
    return why_not_started(answer.err.splitlines()) if answer.code == 1 else None  # 2: it shows its usage


def _shown(attached: Attached) -> contextlib.AbstractContextManager[object]:
    """Show what the ranks write to their files, if they write them."""
    if not attached.run.plan.logging.by_ranks:
        return contextlib.nullcontext()

    def job_of(attempt: str) -> str:
        return attempt.split("-", 2)[-1] if attached.adapter.has_queue else run_id(JOB, attached.run.num)

    return ConsoleOutput(attached.run, ALL, job_of)


@contextlib.contextmanager
def warn_if_stuck(attached: Attached) -> Iterator[None]:
    """Meanwhile, warn once if the scheduler has accepted a request that can never start."""
    adapter = attached.adapter
    command = adapter.pending_command() if isinstance(adapter, Attach) and attached.spec.allocation is None else None
    if command is None or not isinstance(adapter, Attach):
        yield
        return
    from threading import Timer

    def look() -> None:
        with contextlib.suppress(SchedulerError):
            answer = commands.run(command, env=cleaned(os.environ), timeout=QUERY)
            if why := adapter.parse_pending(answer.out, os.getsid(0)):
                complain(f"hpc_hydra: this will never start as it is: {why}\n  Try: Ctrl-C, and another request")

    timer = Timer(LOOK_AFTER, look)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_places(attached: Attached, *, keep: bool) -> None:
    """Check before the start that log files can be written. Raises `ConfigError`."""
    logging = attached.run.plan.logging
    checks.check_logs({"logging.out": logging.out, "logging.err": logging.err})
    if logging.save_hostlist and not keep and not os.access(".", os.W_OK | os.X_OK):
        raise ConfigError(
            f"{RunPaths(attached.run.dir).hostlist.name} cannot be written into the current directory",
            where="logging.save_hostlist",
            fix="-l DIR (launch.launch_dir=DIR) with a writable directory",
        )


def _keep_hostlist(attached: Attached, *, keep: bool) -> None:
    """Copy the list of hosts into the current directory if the run's directory is removed."""
    found = RunPaths(attached.run.dir).hostlist
    if attached.run.plan.logging.save_hostlist and not keep and found.exists():
        shutil.copyfile(found, Path.cwd() / found.name)
