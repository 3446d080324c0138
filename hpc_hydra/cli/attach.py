"""One run that is waited for: its job script runs attached to this console, inside an allocation made for it.

The script is the one that would be submitted. Where nothing is to be kept, its directory is removed at the end.
Must not know: any scheduler's commands (the adapter does), how the command line was written.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra import envvars
from hpc_hydra.cli.command import check_exists
from hpc_hydra.cli.console import Streams, run_attached
from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.errors import ConfigError, SchedulerError
from hpc_hydra.launcher import checks, scripts
from hpc_hydra.launcher.compose import raw_list
from hpc_hydra.launcher.prepare import Prepared, Preparer
from hpc_hydra.planning.types import Logging
from hpc_hydra.records.batching import Group, Run
from hpc_hydra.records.files import keep_private, on_disk, read_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.schedulers import commands, container, generic, registry
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import Attach, JobSteps, NestedQueue
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.system import allocation
from hpc_hydra.ui import dry_run_hosts
from hpc_hydra.ui.dry_run import runs_table, told
from hpc_hydra.ui.progress import complain, say

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

JOB, PLAN = "job0", "plan0"
LOOK_AFTER = 10.0  # seconds after which an allocation that is still waited for is asked about
QUERY = 30.0  # seconds that the answer may take
_ON_RANKS = re.compile(r"\{(rank|host|job_id|array_id)\}")  # what one file of all ranks cannot have


@dataclass(frozen=True)
class Attached:
    """What is to be done, decided; nothing is written yet."""

    adapter: Scheduler
    run: Run
    spec: JobSpec
    script: str
    command: list[str]
    env: Mapping[str, str]
    streams: Streams
    notes: tuple[str, ...]


def launch(loader: ConfigLoader, master: DictConfig, task: Program) -> int | None:
    """Compose and plan the run; then run it attached, or show it. Returns the exit code of the user's command.

    None: the scheduler cannot attach, and nothing was done.

    Raises `HpcHydraError`, and what Hydra raises for bad overrides.
    """
    checks.refuse_on_a_rank()
    keep = _keeps(master)
    with _directory(master, keep=keep) as root, Preparer(loader, master, attached=True).claimed() as preparer:
        overrides = tuple(raw_list(master.hydra.overrides.task))
        preparer.composer.adopt(overrides)  # composed already
        prepared = preparer.prepare([[]], 0)
        preparer.check_files(prepared)
        prepared = replace(prepared, runs=[replace(run, overrides=overrides) for run in prepared.runs])
        todo = _decide(prepared, task, root if root is not None else preparer.root, keep=keep)
        if todo is None:
            return None
        if prepared.settings.launch.dry_run:
            _show(todo, task)
            return 0
        check_exists(task)
        _check_places(todo, keep=keep)
        if prepared.settings.launch.confirm_above is not None:
            from hpc_hydra.ui import cost

            cost.confirm([Group(todo.run.plan, (todo.run,))], prepared.settings.launch.confirm_above)
        with on_disk(todo.spec.sweep, "make room there, or launch.launch_dir=PATH"):
            _write(todo, prepared, task)
        for note in todo.notes:
            complain(f"note: {note}")
        job = (Group(todo.run.plan, (todo.run,)), todo.spec, SweepPaths(todo.spec.sweep).script(JOB))
        pattern = prepared.settings.launch.output_script
        with on_disk(todo.spec.sweep, "launch.output_script=PATH where you may write"):
            scripts.write([job], {todo.adapter.name: todo.adapter}, pattern)
        if pattern not in (None, "-"):
            complain(f"note: {scripts.output(str(pattern), 0)}: {scripts.reads(todo.spec.sweep)}")
        if todo.run.plan.logging.verbose:
            complain(told([job]))
        try:
            return _execute(todo)
        finally:
            _keep_hostlist(todo, keep=keep)


def _keeps(master: DictConfig) -> bool:
    """Whether there is a launch directory; a script that is written to a file needs one to run again."""
    from omegaconf import open_dict, read_write

    script = master.launch.output_script
    if master.launch.launch_dir is None and script not in (None, "-") and not master.launch.dry_run:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = "true"
    return master.launch.launch_dir is not None


@contextlib.contextmanager
def _directory(master: DictConfig, *, keep: bool) -> Iterator[Path | None]:
    """A temporary launch directory where nothing is to be kept; it goes at the end."""
    from omegaconf import open_dict, read_write

    dry = bool(master.launch.dry_run)
    temporary: Path | None = None
    if not keep:
        temporary = Path(tempfile.gettempdir(), "hpc_hydra") if dry else shared_directory(str(master.scheduler.name))
        with read_write(master), open_dict(master):
            master.launch.launch_dir = str(temporary)
    try:
        yield temporary
    finally:
        if temporary is not None and not dry:
            shutil.rmtree(temporary, ignore_errors=True)


def shared_directory(scheduler: str) -> Path:
    """A new directory that the nodes see too: here, else in the home directory. What killed processes left goes."""
    from hpc_hydra.launcher.temporary import make

    if scheduler == THIS_MACHINE:
        return make(Path(tempfile.gettempdir()), "hpc_hydra-")
    for parent in (Path.cwd(), Path.home()):
        with contextlib.suppress(OSError):
            return make(parent, ".hpc_hydra-")
    raise ConfigError(
        "neither this directory nor your home directory can be written to", where="launch.launch_dir", fix="-l DIR"
    )


def _decide(prepared: Prepared, task: Program, root: Path, *, keep: bool) -> Attached | None:
    [run] = prepared.runs
    plan = run.plan
    adapter = registry.adapter_for(plan.request.scheduler)
    generic.check(adapter, plan.tasks)
    if plan.request.max_requeues:
        raise ConfigError(
            "a run that is attached to this console ends with it", where="launch.max_requeues", fix="launch.bg=true"
        )
    per_rank = any(_ON_RANKS.search(text) for text in (plan.logging.out, plan.logging.err) if text)
    spec = scripts.spec(Group(plan, (run,)), JOB, PLAN, root, task)
    spec = replace(
        spec,
        environ={**spec.environ, **({} if per_rank else {envvars.ATTACHED: "1"})},
        comment=f"command: {shlex.join(task.argv)}",
        attached=True,
    )
    script = SweepPaths(root).script(JOB)
    held = allocation.held(adapter, prepared.settings.launch.inside)
    spec = replace(spec, held=held)
    env = cleaned(os.environ, keep=generic.inherited_variables(adapter, plan.request))
    if held is not None and isinstance(adapter, JobSteps):
        from hpc_hydra.schedulers.allocation_queue import StepSubmitter

        StepSubmitter(adapter, held).check(plan.tasks)
        command, env = ["bash", str(script)], adapter.step_environment(os.environ, plan.tasks, held)
    else:
        if not isinstance(adapter, Attach):
            return None
        around = os.environ if isinstance(adapter, NestedQueue) else env
        command = adapter.attach_command(script, spec, around)
        if command[:1] == ["bash"] and isinstance(adapter, NestedQueue):
            env = dict(os.environ)
    notes = (*prepared.notes, *adapter.notes(plan.request), *allocation.notes(prepared.settings, held))
    if plan.request.time_limit is not None and (held is not None or not adapter.has_queue):
        notes += ("resources.time_limit: nobody ends a run at this console (under -m its launcher does)",)
    streams = replace(_streams(plan.logging, root, keep, per_rank), careless=adapter.has_queue)
    return Attached(adapter, run, spec, adapter.script(spec), command, env, streams, notes)


def _streams(logging: Logging, root: Path, keep: bool, per_rank: bool) -> Streams:
    """Files that the output goes to besides the console: those asked for, and two in a launch directory."""
    if per_rank:  # the ranks write them
        return Streams(color_stderr=logging.color_stderr)
    base = root if keep else Path.cwd()

    def path(pattern: str | None, default: str) -> Path | None:
        if pattern is None:
            return base / default if keep else None
        return base / pattern.replace("{num}", "0").replace("{user}", getpass.getuser())

    return Streams(path(logging.out, "out.log"), path(logging.err, "err.log"), logging.color_stderr)


def _show(todo: Attached, task: Program) -> None:
    """Print what would happen: the script, then the command that runs it."""
    path = SweepPaths(todo.spec.sweep).script(JOB)
    notes = [f"note: {note}" for note in todo.notes]
    table = runs_table([(Group(todo.run.plan, (todo.run,)), todo.spec, path)])
    parts = [table, "\n".join(notes), f"# {path}\n{todo.script.rstrip()}"]
    parts += [f"# {beside}\n{text.rstrip()}" for beside, text in container.files(todo.spec).items()]
    parts.append(f"run by:\n  {shlex.join(todo.command)}")
    parts.append(dry_run_hosts.show(todo.adapter, todo.spec, todo.run, task))
    say("\n\n".join(part for part in (*parts, "dry run: nothing was written or run") if part))


def _write(todo: Attached, prepared: Prepared, task: Program) -> None:
    run, sweep = todo.run, todo.spec.sweep
    from hpc_hydra.launcher.reuse import take_over  # a dry run does without

    with take_over(sweep, [run], registry.submitter):
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


def _execute(todo: Attached) -> int:
    try:
        with _hopeless_told(todo):
            ended = run_attached(todo.command, env=todo.env, cwd=todo.spec.workdir, streams=todo.streams)
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{todo.command[0]} is not there: is this a machine with {todo.adapter.name}?",
            where="scheduler",
            fix=f"scheduler={THIS_MACHINE}, or launch.dry_run=true to see what would be run",
        ) from error
    if ended.signal is not None:
        outcome = read_json(RunPaths(todo.run.dir).outcome)
        of_itself = outcome is not None and (outcome["status"] == "completed" or outcome["rank"] is not None)
        if not of_itself:  # the code is the scheduler's
            return 128 + ended.signal
    return ended.exit_code


@contextlib.contextmanager
def _hopeless_told(todo: Attached) -> Iterator[None]:
    """Meanwhile, say it once where the scheduler has taken a request that can never start: it waits for ever."""
    adapter = todo.adapter
    command = adapter.pending_command() if isinstance(adapter, Attach) and todo.spec.held is None else None
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


def _check_places(todo: Attached, *, keep: bool) -> None:
    """Refuse, before anything is started, files that could not be written. Raises `ConfigError`."""
    logging = todo.run.plan.logging
    checks.check_logs({"logging.out": logging.out, "logging.err": logging.err})
    if logging.save_hostlist and not keep and not os.access(".", os.W_OK | os.X_OK):
        raise ConfigError(
            f"{RunPaths(todo.run.dir).hostlist.name} cannot be written into the current directory",
            where="logging.save_hostlist",
            fix="-l DIR (launch.launch_dir=DIR) where you may write",
        )


def _keep_hostlist(todo: Attached, *, keep: bool) -> None:
    """The list of hosts stands in the run's directory; where that goes, it is moved here."""
    found = RunPaths(todo.run.dir).hostlist
    if todo.run.plan.logging.save_hostlist and not keep and found.exists():
        shutil.copyfile(found, Path.cwd() / found.name)
