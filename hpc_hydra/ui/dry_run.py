"""Text of a dry run: the table of runs, the origin of each value, the scripts, the commands.

Writes nothing and needs no scheduler on this machine. Must not know: how jobs are submitted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.config.secrets import masked_words
from hpc_hydra.planning.drawing import replica_groups
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import Request
from hpc_hydra.planning.units import clock, size_text
from hpc_hydra.records.batching import Group, Run
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import capability_defaults, container
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import JobSteps, Packing
from hpc_hydra.schedulers.job_script import command, variables
from hpc_hydra.ui import columns, dry_run_hosts, origins
from hpc_hydra.ui.origins import Origin, Origins
from hpc_hydra.ui.run_table import common_overrides, shown_overrides

_COLUMNS = ("run", "system", "nodes × ranks", "GPUs", "CPUs", "time", "queue", "job", "overrides")
_MOST = 50  # runs whose commands are listed
_FEW = 3  # runs whose files are listed
Job = tuple[Group, JobSpec, Path]


@dataclass(frozen=True)
class Facts:
    """What a dry run shows beside the jobs.

    Attributes:
        argv: the arguments of the launching process.
        hydra: overrides of Hydra's own keys on the command line.
        steps: returns the specs of packed runs.
        origins: returns the origins of the directives and variables of a run's job or step, given its script.
        filled: returns the arguments of a command with the values of a run.
        by: the command that runs a job, if it is not submitted.
    """

    program: Program | None = None
    argv: Sequence[str] = ()
    hydra: Sequence[str] = ()
    steps: Callable[[Group, JobSpec], Sequence[JobSpec]] = lambda group, spec: ()
    origins: Callable[[Run, JobSpec, str], Origins] = lambda run, spec, script: Origins()
    filled: Callable[[Run, Sequence[str]], Sequence[str]] = lambda run, words: words
    by: Sequence[str] = ()


def show(
    adapters: Mapping[str, Scheduler], jobs: Sequence[Job], notes: Sequence[str], facts: Facts | None = None
) -> str:
    """Return the text of a dry run. The table of several runs begins and, if that is out of sight, ends it."""
    from hpc_hydra.ui import cost

    facts = facts or Facts()
    head = [runs_table(jobs), cost.told([group for group, _, _ in jobs])]
    first = _First(adapters, facts)
    body = [part for job in jobs for part in first.parts(*job)]
    body += [_submitted(adapters, jobs, facts), executed(jobs, facts), _output(jobs)]
    tail = ["\n".join(line for note in notes for line in columns.wrapped(f"note: {note}", "", "  "))]
    text = "\n\n".join(part for part in (*head, *body, *tail) if part)
    if sum(len(group.runs) for group, _, _ in jobs) > 1 and text.count("\n") >= columns.screen()[1]:
        text = "\n\n".join(part for part in (text, *head) if part)
    return f"{text}\n\ndry run: nothing was written or {'run' if facts.by else 'submitted'}"


@dataclass
class _First:
    """Shows a job: the first of each kind in full, others beside it."""

    adapters: Mapping[str, Scheduler]
    facts: Facts
    _scripts: dict[str, tuple[str, str]] = field(default_factory=dict)  # by kind: name, text
    _origins: dict[str, dict[str, Origins]] = field(default_factory=dict)  # by adapter and job
    _files: dict[Path, str] = field(default_factory=dict)

    def parts(self, group: Group, spec: JobSpec, path: Path) -> Iterator[str]:
        adapter = self.adapters[group.plan.request.scheduler]
        yield _title(adapter, group, spec)
        yield "\n".join(replica_groups(group.plan))
        script = adapter.script(spec)
        yield from self._tables(adapter.name, spec.key, self.facts.origins(group.runs[0], spec, script))
        yield self._script(adapter.name, spec, path, script)
        yield from self._beside(spec)
        if self.facts.program is not None and group.pack is None:
            yield dry_run_hosts.show(
                adapter, spec, group.runs[0], self.facts.program, self.facts.argv, self.facts.hydra
            )
        for step in self.facts.steps(group, spec):
            assert isinstance(adapter, Packing)  # `check_packing` was called
            name = SweepPaths(spec.sweep).step_script(spec.key, step.environ[envvars.PLAN])
            kind, script = f"{adapter.name} step", adapter.step_script(step)
            run = next(run for run in group.runs if run.num in step.runs)
            yield from self._tables(kind, name.stem, self.facts.origins(run, step, script))
            yield self._script(kind, step, name, script)
            yield from self._beside(step)

    def _tables(self, adapter: str, job: str, found: Origins) -> Iterator[str]:
        earlier = self._origins.setdefault(adapter, {})
        first = next(iter(earlier.values()), Origins())
        same = next((name for name, one in earlier.items() if one.variables == found.variables), None)
        earlier[job] = found
        new = found.beside(first)
        if new.directives:
            yield origins.directives(new.directives)
        if same is not None:
            yield f"{origins.TITLE}: as in {same}" if found.variables != first.variables else ""
            return
        if new.variables:
            likewise = f": as in {next(iter(earlier))}, and" if len(earlier) > 1 else ""
            yield origins.variables(new.variables, f"{origins.TITLE}{likewise}")
        if left := found.lacks(first):
            yield f"variables not set: {', '.join(left)}"

    def _script(self, kind: str, spec: JobSpec, path: Path, script: str) -> str:
        text = _without_environment(spec, script).rstrip()
        name, first = self._scripts.setdefault(kind, (path.name, text))
        if name == path.name:
            return f"# {path}\n{text}"
        return "\n".join([f"# {path}, where it differs from {name}:", *_differences(first, text)])

    def _beside(self, spec: JobSpec) -> Iterator[str]:
        for path, text in container.files(spec).items():
            if self._files.get(path) != text:
                self._files[path] = text
                yield f"# {path}\n{text.rstrip()}"


def told(jobs: Sequence[Job]) -> str:
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
            rows = [Origin(var.name, var.value, var.origin, "", origins.about(var)) for var in group.plan.redacted.env]
            parts.append(origins.variables(rows))
    return "\n\n".join(parts)


def runs_table(jobs: Sequence[Job]) -> str:
    """Return the table of runs, one line per run."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    runs = sorted(((r, spec.key) for group, spec, _ in jobs for r in group.runs), key=lambda p: p[0].num)
    common = common_overrides([run for run, _ in runs])
    rows += [_row(run, key, common) for run, key in runs]
    return columns.table(rows)


def _row(run: Run, key: str, common: Collection[str]) -> tuple[str, ...]:
    request = run.plan.request
    own = [text for text in run.told if not text.lstrip("+").startswith("launch.dry_run=")]
    return (
        str(run.num),
        run.plan.system,
        f"{request.nodes}{f' (+{request.spare_nodes})' if request.spare_nodes else ''} × {request.procs_per_node}",
        str(request.world_size * request.gpus_per_proc),
        "-" if request.cpus_per_proc is None else str(request.world_size * request.cpus_per_proc),
        "-" if request.time_limit is None else clock(request.time_limit),
        _queue(request),
        key,
        shown_overrides(own, common),
    )


def _queue(request: Request) -> str:
    """Return the queue, and the quality of service, which is what some sites call a queue."""
    if request.queue and request.qos:
        return f"{request.queue} (qos {request.qos})"
    return request.queue or request.qos or "-"


def _title(adapter: Scheduler, group: Group, spec: JobSpec) -> str:
    request = group.plan.request
    memory = "" if request.mem_per_node is None else f", {size_text(request.mem_per_node)} of memory per node"
    title = f"{spec.key}: {len(group.runs)} run{'s' if len(group.runs) != 1 else ''} on {adapter.name}{memory}"
    return f"{title}\n{'─' * min(len(title), columns.screen()[0])}"


def _submitted(adapters: Mapping[str, Scheduler], jobs: Sequence[Job], facts: Facts) -> str:
    """Return the commands that submit or run the jobs."""
    if facts.by:
        return f"run by:\n  {shlex.join(facts.by)}"
    ways: dict[str, list[str]] = {}
    for group, spec, path in jobs:
        how = "submitted" if spec.allocation is None else f"run as steps of the allocation {spec.allocation.job_id}"
        commands = by_hand(adapters[group.plan.request.scheduler], spec, path)
        shown = commands[:3] + ([f"… and {len(commands) - 3} more"] if len(commands) > 3 else [])
        ways.setdefault(how, []).extend(shown)
    return "\n\n".join("\n  ".join([f"{how} by:", *commands]) for how, commands in ways.items())


def executed(jobs: Sequence[Job], facts: Facts) -> str:
    """Return the command that each rank of each run executes; empty if the program is no file."""
    if facts.program is None:
        return ""
    runs = sorted((run for group, _, _ in jobs for run in group.runs), key=lambda run: run.num)
    commands: dict[str, list[int]] = {}
    for run in runs[:_MOST]:
        words = dry_run_hosts.executed(facts.program, run, facts.argv)
        if words:
            shown = masked_words(facts.filled(run, words), run.plan.secrets)
            commands.setdefault(command(shown), []).append(run.num)
    if not commands:
        return ""
    lines = ["each rank executes the equivalent of:"]
    lines += [f"  run{'s' * (len(nums) > 1)} {' '.join(map(str, nums))}: {text}" for text, nums in commands.items()]
    return "\n".join([*lines, *([f"  … and of {len(runs) - _MOST} more runs"] if len(runs) > _MOST else [])])


def _output(jobs: Sequence[Job]) -> str:
    """Return the files of the ranks' output; empty where no key names them."""
    runs = sorted((run for group, _, _ in jobs for run in group.runs), key=lambda run: run.num)
    named = [run for run in runs if run.plan.logging.out or run.plan.logging.err]
    if not named:
        return ""
    lines = ["the output of the ranks goes to:"]
    for run in named[:_FEW]:
        logging = run.plan.logging
        keys = (("logging.out", logging.out), ("logging.err", logging.err))
        files = [f"{run.dir / path} ({key})" for key, path in keys if path]
        lines.append(f"  run {run.num}: {', '.join(files)}")
    return "\n".join([*lines, *([f"  … and of {len(named) - _FEW} more runs"] if len(named) > _FEW else [])])


def by_hand(adapter: Scheduler, spec: JobSpec, script: Path) -> list[str]:
    """Return the commands that submit or start each run of a script by hand."""
    if spec.allocation is not None and isinstance(adapter, JobSteps):
        new = adapter.step_environment({}, task_request(spec.plan), spec.allocation)
        words = ["env", *(f"{name}={value}" for name, value in new.items())] if new else []
        return [shlex.join([*words, "bash", str(script), str(run)]) for run in spec.runs]
    stdin = f" < {shlex.quote(str(script))}" if adapter.reads_stdin else ""
    return [shlex.join(argv) + stdin for _, argv in capability_defaults.submissions(adapter, script, spec)]


def _without_environment(spec: JobSpec, script: str) -> str:
    """Return a script with one comment in place of the lines that set the plan's variables."""
    block = "\n".join(variables(spec))
    comment = "\n# here: the environment of the ranks, see above (launch.dry_run=script prints the whole script)"
    return script.replace(block, comment, 1) if block else script


def _differences(first: str, other: str) -> Iterator[str]:
    """Yield the lines that only one of two scripts has, marked by - and +."""
    import difflib  # imported here: a single script has no differences

    for line in difflib.unified_diff(first.splitlines(), other.splitlines(), lineterm="", n=0):
        if not line.startswith(("--- ", "+++ ", "@@")):
            yield line
