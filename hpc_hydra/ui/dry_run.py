"""Text of a dry run: the table of runs, the scripts, the commands, the presets.

Writes nothing and needs no scheduler on this machine. Must not know: how jobs are submitted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.planning.drawing import replica_groups
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.planning.units import clock, size_text
from hpc_hydra.records.batching import Group, Run
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import capability_defaults, container
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import JobSteps, Packing
from hpc_hydra.ui import dry_run_hosts
from hpc_hydra.ui.progress import common_overrides, shown_overrides

_COLUMNS = ("run", "system", "nodes × ranks", "GPUs", "CPUs", "time", "queue", "job", "overrides")


def show(
    adapters: dict[str, Scheduler],
    jobs: Sequence[tuple[Group, JobSpec, Path]],
    notes: Sequence[str],
    program: Program | None = None,
    hydra: Sequence[str] = (),
    steps: Callable[[Group, JobSpec], Sequence[JobSpec]] = lambda group, spec: (),
) -> str:
    """Return the text of a dry run.

    Args:
        jobs: each group with its spec and the path of its script.
        hydra: overrides of Hydra's own keys on the command line.
        steps: returns the specs of packed runs.
    """
    from hpc_hydra.ui import cost

    parts = [runs_table(jobs), cost.told([group for group, _, _ in jobs])]
    if notes:
        parts.append("\n".join(f"note: {note}" for note in notes))
    for group, spec, path in jobs:
        adapter = adapters[group.plan.request.scheduler]
        parts.append(_job(adapter, group, spec, path))
        if program is not None and group.pack is None:
            parts.append(dry_run_hosts.show(adapter, spec, group.runs[0], program, hydra))
        for step in steps(group, spec):
            assert isinstance(adapter, Packing)  # `check_packing` was called
            name = SweepPaths(spec.sweep).step_script(spec.key, step.environ[envvars.PLAN])
            parts.append(f"# {name}\n{adapter.step_script(step).rstrip()}")
            parts += [f"# {beside}\n{text.rstrip()}" for beside, text in container.files(step).items()]
    parts.append("dry run: nothing was written or submitted")
    return "\n\n".join(part for part in parts if part)


def told(jobs: Sequence[tuple[Group, JobSpec, Path]]) -> str:
    """Return the runs, and the script, rendezvous and environment of each job, for `logging.verbose`."""
    parts = [runs_table(jobs)]
    for group, spec, path in jobs:
        meet = group.plan.rendezvous
        given = [
            f"{each.name}={value}"
            for each in fields(meet)
            if each.name != "name" and (value := getattr(meet, each.name)) not in (None, False, each.default)
        ]
        parts.append(f"{spec.key}: {path}\nrendezvous: {' '.join([meet.name, *given])}")
        if group.plan.env:
            parts.append("environment of the ranks:\n" + "\n".join(map(_preset, group.plan.redacted.env)))
    return "\n\n".join(parts)


def runs_table(jobs: Sequence[tuple[Group, JobSpec, Path]]) -> str:
    """Return the table of runs, one line per run."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    runs = sorted(((r, spec.key) for group, spec, _ in jobs for r in group.runs), key=lambda p: p[0].num)
    common = common_overrides([run for run, _ in runs])
    rows += [_row(run, key, common) for run, key in runs]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _row(run: Run, key: str, common: Collection[str]) -> tuple[str, ...]:
    request = run.plan.request
    return (
        str(run.num),
        run.plan.system,
        f"{request.nodes} × {request.procs_per_node}",
        str(request.world_size * request.gpus_per_proc),
        "-" if request.cpus_per_proc is None else str(request.world_size * request.cpus_per_proc),
        "-" if request.time_limit is None else clock(request.time_limit),
        request.queue or "-",
        key,
        shown_overrides(run.told, common),
    )


def _job(adapter: Scheduler, group: Group, spec: JobSpec, path: Path) -> str:
    request = group.plan.request
    memory = "" if request.mem_per_node is None else f", {size_text(request.mem_per_node)} of memory per node"
    title = f"{spec.key}: {len(group.runs)} run{'s' if len(group.runs) != 1 else ''} on {adapter.name}{memory}"
    rule = "─" * min(len(title), 100)
    commands = by_hand(adapter, spec, path)
    shown = commands[:3] + ([f"… and {len(commands) - 3} more"] if len(commands) > 3 else [])
    groups = replica_groups(group.plan)
    parts = [f"{title}\n{rule}", *(["\n".join(groups)] if groups else []), f"# {path}\n{adapter.script(spec).rstrip()}"]
    parts += [f"# {beside}\n{text.rstrip()}" for beside, text in container.files(spec).items()]
    how = "submitted" if spec.held is None else f"run as steps of the allocation {spec.held.job_id}"
    parts.append(f"{how} by:\n  " + "\n  ".join(shown))
    if group.plan.env:
        parts.append("environment of the ranks:\n" + "\n".join(map(_preset, group.plan.redacted.env)))
    return "\n\n".join(parts)


def _preset(var: EnvVar) -> str:
    how = {"default": "unless set in your shell", "force": "always", "prepend": "prepended"}[var.mode]
    when = "".join(f", when {kind} {argument}" for kind, argument in var.when)
    lines = [f"  {var.name}={var.value}   ({how}{when})"]
    about = "; ".join(
        t for t in (var.why, var.origin, var.source, f"checked {var.checked}" if var.checked else "") if t
    )
    return "\n".join([*lines, f"      {about}"] if about else lines)


def by_hand(adapter: Scheduler, spec: JobSpec, script: Path) -> list[str]:
    """Return the commands that submit or start each run of a script by hand."""
    if spec.held is not None and isinstance(adapter, JobSteps):
        new = adapter.step_environment({}, task_request(spec.plan), spec.held)
        words = ["env", *(f"{name}={value}" for name, value in new.items())] if new else []
        return [shlex.join([*words, "bash", str(script), str(run)]) for run in spec.runs]
    stdin = f" < {shlex.quote(str(script))}" if adapter.reads_stdin else ""
    return [shlex.join(argv) + stdin for _, argv in capability_defaults.submissions(adapter, script, spec)]
