"""``hpc-hydra shell``: a shell on a node of an allocation, with the environment of a rank.

Must not know: any scheduler's commands (the adapter does).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra.cli import run
from hpc_hydra.cli.run import CONFIG
from hpc_hydra.cli.scan import Option, UsageError, format_help, scan_among
from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.errors import PlanError, SchedulerError

OPTIONS = (Option(("--help", "-h"), "flag", help="show this help"), *CONFIG)
USAGE = "hpc-hydra shell [overrides] [-cd DIR] [-cn NAME]"
ABOUT = """A shell on the first node of an allocation, with the directory, environment and container of the ranks.
launch.dry_run=true prints the commands."""
EXAMPLE = "hpc-hydra shell resources.nodes=1 resources.time_limit=1h"


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra shell``; returns the shell's exit code. Raises `HpcHydraError`."""
    words, given = scan_among(OPTIONS, argv)
    if "help" in given:
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS, f"example: {EXAMPLE}"))
        return 0
    wrong = [word for word in words if not ("=" in word or word.startswith("~"))]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not an override", where="shell", fix=EXAMPLE)
    from hpc_hydra.cli import attach
    from hpc_hydra.cli.command import program
    from hpc_hydra.launcher import checks, scripts
    from hpc_hydra.launcher.prepare import Preparer
    from hpc_hydra.launcher.temporary import shared_directory
    from hpc_hydra.planning.tasks import task_request
    from hpc_hydra.planning.types import Rendezvous
    from hpc_hydra.records.batching import Group
    from hpc_hydra.records.files import write_script
    from hpc_hydra.schedulers import capability_checks, capability_defaults, container, registry
    from hpc_hydra.schedulers.capabilities import InteractiveShell
    from hpc_hydra.schedulers.environment import cleaned, is_in_job
    from hpc_hydra.schedulers.job_script import interactive_script, write_secrets
    from hpc_hydra.ui.progress import complain, say

    checks.refuse_on_a_rank()
    call = run.Call(tuple(words), ("bash",), **given)
    with run.translated_errors():
        run._check_overrides(call)
        hydra, master = run.compose(call, name="shell")
        preparer = Preparer(hydra.config_loader, master, attached=True)
        overrides = tuple(master.hydra.overrides.task)
        preparer.composer.adopt(overrides)
        prepared = preparer.prepare([[]], 0)
        preparer.check_files(prepared)
    dry = prepared.settings.launch.dry_run
    plan = prepared.runs[0].plan
    plan = replace(plan, rendezvous=Rendezvous("torchrun"))  # one task per node, with the resources of all its ranks
    request = replace(plan.request, warning=None, max_requeues=0)  # a warning would end the shell
    plan = replace(plan, request=request)
    adapter = registry.adapter_for(plan.request.scheduler)
    capability_checks.check(adapter, task_request(plan))
    root = Path("/tmp/hpc_hydra-shell") if dry else shared_directory(adapter.name)
    try:
        group = Group(plan, (replace(prepared.runs[0], plan=plan, dir=root),))
        spec = replace(scripts.spec(group, "shell", "plan0", root, program(("bash",))), attached=True)
        script = root / "shell.sh"
        if not isinstance(adapter, InteractiveShell):
            raise PlanError(
                f"{adapter.name} does not support interactive allocations",
                where="scheduler.name",
                fix="ssh to the machine",
            )
        command = adapter.shell_command(script, spec, os.environ)
        text = interactive_script(spec)
        notes = [f"note: {note}" for note in (*prepared.notes, *adapter.notes(plan.request))]
        if dry:
            files = [f"# {path}\n{body.rstrip()}" for path, body in container.files(spec).items()]
            parts = [*notes, f"# {script}\n{text.rstrip()}", *files, f"run by:\n  {shlex.join(command)}"]
            say("\n\n".join([*parts, "dry run: nothing was written or run"]))
            return 0
        for note in notes:
            complain(note)
        write_script(script, text)
        write_secrets(spec)
        if plan.container is not None:
            scripts.write_container([spec])
        env = (
            dict(os.environ)
            if is_in_job(os.environ)
            else cleaned(os.environ, keep=capability_defaults.inherited_variables(adapter, plan.request))
        )
        code = _interactive(command, env, adapter.name)
        if code == 1:  # of the shell, or of a command that got no allocation
            attach.check_refusal(adapter, command, script, spec)
        return code
    finally:
        if not dry:
            shutil.rmtree(root, ignore_errors=True)


def _interactive(command: Sequence[str], env: dict[str, str], scheduler: str) -> int:
    """Run the command on this terminal; only the shell receives Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = subprocess.run(
            command, env=env, check=False, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        ).returncode
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{command[0]} is not installed; does this machine have {scheduler}?",
            where="scheduler",
            fix=f"scheduler={THIS_MACHINE}",
        ) from error
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
