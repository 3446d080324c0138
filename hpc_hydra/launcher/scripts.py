"""Job specifications of groups of runs, and writing their job scripts.

Must not know: how scripts are submitted.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import hpc_hydra
from hpc_hydra import envvars
from hpc_hydra.config.store import conf_dir, expanded
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.packing import share
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records.batching import Group, Pack, lanes, split
from hpc_hydra.records.files import write_bytes, write_script
from hpc_hydra.records.frozen_config import Program, read_plans
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers import container, job_script, registry
from hpc_hydra.schedulers.base import Allocation, JobSpec, Scheduler
from hpc_hydra.schedulers.capabilities import Dependencies, Packing
from hpc_hydra.ui.dry_run import by_hand as commands_by_hand
from hpc_hydra.ui.progress import say

Jobs = Sequence[tuple[Group, JobSpec, Path]]
EARLIER = "earlier"  # in place of a job's key: the jobs that the sweep already has in the queue


def spec(group: Group, key: str, plan_key: str, root: Path, program: Program) -> JobSpec:
    """Return the specification from which an adapter writes the script of a group."""
    outside, inside = _pythons(group.plan)
    node = (*program.flags, "-m", "hpc_hydra.node")
    return JobSpec(
        key=key,
        plan=group.plan,
        runs=group.nums,
        sweep=root,
        workdir=Path(program.cwd),
        tag=tag(key),
        log=SweepPaths(root).jobs,
        rank_command=(inside, *node, "rank"),
        finish_command=(outside, *node, "finish"),
        environ={envvars.PLAN: plan_key, **({envvars.LAUNCH: program.launch} if program.launch else {})},
        pythonpath=program.pythonpath,
        needs=_needs(group, root, program),
        home=str(expanded("~")),
    )


def _pythons(plan: Plan) -> tuple[str, str]:
    """Return the Python interpreters for the node and for the ranks, which may run in a container."""
    if plan.container:
        return sys.executable, plan.python or container.PYTHON
    return plan.python or sys.executable, plan.python or sys.executable


def _needs(group: Group, root: Path, program: Program) -> tuple[str, ...]:
    """Return the directories that a container must mount besides the sweep and the working directory."""
    directories = {str(run.dir) for run in group.runs if not run.dir.is_relative_to(root)}
    if program.kind == "script":
        directories.add(str(Path(program.target).parent))
    if program.sys_path0 and program.kind != "command":
        directories.add(program.sys_path0)
    return tuple(sorted(directories))


def pack_spec(group: Group, key: str, plan_key: str, root: Path, program: Program) -> JobSpec:
    """Return the specification from which an adapter writes the script of an allocation for several runs."""
    assert group.pack is not None
    outer = spec(group, key, plan_key, root, program)
    node = outer.finish_command[:-1]  # runs on the node; only the packed runs are in containers
    return replace(
        outer, rank_command=(*node, "pack"), finish_command=(*node, "pack", "--failed"), packs=group.pack.sizes
    )


def steps(group: Group, outer: JobSpec, plan_key: Callable[[Plan], str]) -> list[JobSpec]:
    """Return a specification for each plan of packed runs, whose script starts one run; empty without packing."""
    if group.pack is None:
        return []
    node = outer.rank_command[:-1]
    specs = []
    scheduler = registry.adapter_for(group.plan.request.scheduler)
    sets_up = isinstance(scheduler, Packing) and scheduler.setup_per_run
    for plan in dict.fromkeys(run.plan for run in group.runs):
        _, inside = _pythons(plan)
        bare = plan if sets_up else replace(plan, request=replace(plan.request, setup_lines=()))  # run once, by the job
        specs.append(
            replace(
                outer,
                plan=bare,
                runs=tuple(run.num for run in group.runs if run.plan == plan),
                packs=(),
                rank_command=(inside, *node[1:], "rank"),
                finish_command=(*node, "finish"),
                environ={envvars.PLAN: plan_key(plan)},
            )
        )
    return specs


def inside(spec: JobSpec, held: Allocation | None) -> JobSpec:
    """Make the runs of ``spec`` job steps of the allocation ``held``, started by the launcher. Raises `ConfigError`."""
    if held is None:
        return spec
    if spec.packs:
        raise ConfigError(
            f"has no effect in an allocation ({held.job_id}), which runs share anyway",
            where="launch.pack",
            fix="launch.pack=null, or launch.inside=submit",
        )
    return replace(spec, attached=True, allocation=held)


def tag(key: str) -> str:
    """Return a tag that is unique to this submission."""
    return f"hpc_hydra-{os.urandom(6).hex()}-{key}"


def retag(path: Path, old: str, new: str) -> None:
    """Replace the tag in a written script, before it is submitted again."""
    with suppress(FileNotFoundError):
        write_script(path, path.read_text("utf-8", "surrogateescape").replace(old, new))


def sharing(jobs: Jobs, there: Mapping[str, Sequence[str]] | None = None) -> list[tuple[Group, JobSpec, Path]]:
    """Limit the elements that run at once on each scheduler, over all jobs, to ``scheduler.array_parallelism``.

    Args:
        there: by scheduler, ids of jobs of this sweep that are in its queue already and count towards the limit. If
            they exhaust it, the new jobs start after their end.
    """
    limited = list(jobs)
    for name in {spec.plan.request.scheduler for _, spec, _ in jobs if spec.allocation is None}:
        indices = [
            i
            for i, (_, spec, _) in enumerate(jobs)
            if spec.plan.request.scheduler == name and spec.plan.request.array_parallelism is not None
        ]
        others = len((there or {}).get(name, ()))
        if not indices or (len(indices) < 2 and not others) or not registry.has_queue(name):
            continue
        most = min(jobs[i][1].plan.request.array_parallelism or 1 for i in indices)
        limit, first = (most - others, "") if others < most else (most, EARLIER)
        for i, (width, before) in zip(indices, lanes([jobs[i][1].elements for i in indices], limit), strict=True):
            group, spec, path = jobs[i]
            plan = replace(spec.plan, request=replace(spec.plan.request, array_parallelism=width))
            follows = jobs[indices[before]][1].key if before is not None else first
            limited[i] = (group, replace(spec, plan=plan, follows=follows), path)
    return limited


def following(spec: JobSpec, path: Path, jobs: Sequence[tuple[str, ...]], adapter: Scheduler) -> JobSpec:
    """Make a job, and its script, start after the jobs with these ids have ended, whatever their outcome."""
    request = spec.plan.request
    assert isinstance(adapter, Dependencies)  # `throttled` asks
    dependency = adapter.after(jobs)[0].replace("afterok:", "afterany:", 1)
    dependency = adapter.all_of([*([request.dependency] if request.dependency else []), dependency])
    spec = replace(spec, plan=replace(spec.plan, request=replace(request, dependency=dependency)))
    write_script(path, adapter.script(spec))
    return spec


def one_by_one(group: Group, spec: JobSpec, adapter: Scheduler) -> list[tuple[Group, JobSpec, Path]]:
    """Replace the script of a job array by one script per element (a run, or an allocation of several runs)."""
    name = group.plan.request.scheduler
    jobs = []
    for number, part in enumerate(split([group], {name: 1}), start=next_key(spec.sweep)):
        key = f"job{number}"
        packs = part.pack.sizes if part.pack is not None else ()
        alone = replace(spec, key=key, runs=part.nums, packs=packs, tag=tag(key))
        jobs.append((part, alone, SweepPaths(spec.sweep).script(key)))
    jobs = sharing(jobs)
    keys = {plan: key for key, plan in read_plans(spec.sweep).items()} if group.pack is not None else {}
    write(jobs, {name: adapter}, None, keys.__getitem__)
    return jobs


def next_key(root: Path) -> int:
    """Return the first unused job number of the sweep."""
    keys = [path.stem for path in SweepPaths(root).jobs.glob("job*.sh")]
    return 1 + max((int(key[3:]) for key in keys if key[3:].isdigit()), default=-1)


def check_output(pattern: str | None, count: int) -> None:
    """Refuse to write ``count`` scripts to one file, to replace a file that is no job script of ours, or where no file
    can be written.

    Raises `ConfigError`.
    """
    if pattern is None or pattern == "-":
        return
    if count > 1 and "{num}" not in pattern:
        raise ConfigError(
            f"{count} job scripts cannot all be written to {pattern}",
            where="launch.output_script",
            fix=f"\"launch.output_script='{_numbered(pattern)}'\", a file for each",
        )
    for path in (output(pattern, number) for number in range(count)):
        if path.exists() and not job_script.may_replace(path):
            raise ConfigError(
                f"{path} exists and is not a job script of hpc_hydra",
                where="launch.output_script",
                fix="the name of a new file, or - for standard output",
            )
        there = next(folder for folder in path.parents if os.path.lexists(folder))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = os.strerror(errno.EACCES if there.is_dir() else errno.ENOTDIR)
            raise ConfigError(
                f"{path} cannot be written: {there}: {why}",
                where="launch.output_script",
                fix="launch.output_script=PATH in a writable directory, or - for standard output",
            )


def write(
    jobs: Jobs, adapters: Mapping[str, Scheduler], pattern: str | None, plan_key: Callable[[Plan], str] = str
) -> None:
    """Write the scripts into the sweep directory and to ``launch.output_script``.

    Args:
        pattern: `launch.output_script`; "-" is standard output.
        plan_key: returns the key of a packed run's plan.

    Raises `ConfigError`.
    """
    unpacked = [spec for group, spec, _ in jobs if group.pack is None]
    packed = [step for group, spec, _ in jobs for step in steps(group, spec, plan_key)]
    write_container([spec for spec in (*unpacked, *packed) if spec.plan.container])
    for spec in (*(spec for _, spec, _ in jobs), *packed):
        job_script.write_secrets(spec)
    for number, (group, spec, path) in enumerate(jobs):
        adapter = adapters[group.plan.request.scheduler]
        text = adapter.script(spec)
        write_script(path, text)
        if group.pack is not None:
            _write_pack(group, group.pack, spec, adapter, plan_key)
        if pattern == "-":
            say(text)
        elif pattern is not None:
            target = output(pattern, number)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_script(target, text)


def plain(jobs: Jobs, adapters: Mapping[str, Scheduler], plan_key: Callable[[Plan], str] = str) -> str:
    """Return the scripts, one after the other; each begins with the line ``#!/bin/bash``, which no other line is."""
    texts = []
    for group, spec, _ in jobs:
        adapter = adapters[group.plan.request.scheduler]
        texts.append(adapter.script(spec))
        for step in steps(group, spec, plan_key):
            assert isinstance(adapter, Packing)  # `check_packing` was called
            texts.append(adapter.step_script(step))
    return "".join(texts).removesuffix("\n")


def write_container(specs: Sequence[JobSpec]) -> None:
    """Write the files for the containers of these jobs. Raises `ConfigError` before anything is written."""
    for spec in specs:
        check_container(spec)
    if specs:
        write_library(SweepPaths(specs[0].sweep).lib)
    for spec in specs:
        for path, text in container.files(spec).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, text.encode())


def check_container(spec: JobSpec) -> None:
    """Check that image and mounts exist, if they are paths, before anything is queued. Raises `ConfigError`."""
    box = spec.plan.container
    if box is None:
        return
    if box.image.startswith(("/", "./", "../", "~")):
        path = Path(spec.workdir, box.image)
        if not path.exists():
            raise ConfigError("there is no such image", where=f"container.image={box.image}", fix="its absolute path")
        if not os.access(path, os.R_OK):
            raise ConfigError("cannot be read", where=f"container.image={box.image}", fix=f"chmod a+r {path}")
    for number, mount in enumerate(box.mounts):
        if not Path(mount.source).exists():
            raise ConfigError(
                f"there is no {mount.source}", where=f"container.mounts[{number}]", fix="a path on this machine"
            )


_LOG_COMMAND = ("__init__.py", "__main__.py", "main.py", "scan.py", "log.py")  # `hpc-hydra log` in a container


def write_library(lib: Path) -> None:
    """Copy this package for ranks in a container, which do not have the host's Python. Skips unchanged files."""
    package = Path(hpc_hydra.__file__).parent
    sources = {path.relative_to(package.parent): path for path in sorted(package.rglob("*.py"))}
    conf = conf_dir()
    sources |= {Path("hpc_hydra/conf", path.relative_to(conf)): path for path in sorted(conf.rglob("*.yaml"))}
    needed = (name for name in sources if "cli" not in name.parts or name.name in _LOG_COMMAND)
    wanted = {name: sources[name].read_bytes() for name in needed}
    wanted[Path(container.ENTER)] = container.ENTER_SCRIPT.encode()
    for name, text in wanted.items():
        target = lib / name
        if not target.exists() or target.read_bytes() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, text)


def _write_pack(group: Group, pack: Pack, spec: JobSpec, adapter: Scheduler, plan_key: Callable[[Plan], str]) -> None:
    assert isinstance(adapter, Packing)  # `check_packing` was called
    paths, allocation = SweepPaths(spec.sweep), pack.room
    shares = {}
    for step in steps(group, spec, plan_key):
        key = step.environ[envvars.PLAN]
        shares[key] = to_json(share(step.plan))
        write_script(paths.step_script(spec.key, key), adapter.step_script(step))
    starts = [sum(pack.sizes[:i]) for i in range(len(pack.sizes))]
    packs = [list(group.nums[start : start + size]) for start, size in zip(starts, pack.sizes, strict=True)]
    data = {
        "nodes": allocation.request.nodes, "cpus": allocation.cpus, "gpus": allocation.gpus, "mem": allocation.mem,
        "at_a_time": allocation.at_a_time, "shares": shares,
    }  # fmt: skip
    text = json.dumps(data, indent=1)[:-2] + ',\n "packs": ' + json.dumps(packs) + "\n}\n"
    write_bytes(paths.pack(spec.key), text.encode())


def by_hand(jobs: Jobs, adapters: Mapping[str, Scheduler], pattern: str | None = None) -> str:
    """Return the commands that submit the written scripts by hand; ``pattern`` as in `write`."""
    lines = ["scripts are written, nothing is submitted; to submit them:"]
    for number, (group, spec, written) in enumerate(jobs):
        path = written if pattern in (None, "-") else output(str(pattern), number)
        lines += [f"  {line}" for line in commands_by_hand(adapters[group.plan.request.scheduler], spec, path)]
    if jobs and pattern is not None:
        lines.append(reads(jobs[0][1].sweep))
    return "\n".join(lines)


def reads(sweep: Path) -> str:
    """Return a note that scripts written elsewhere (``launch.output_script``) need the sweep directory."""
    return f"keep {sweep}: the job scripts read it, and runs write to it (launch.launch_dir=DIR sets it)"


def output(pattern: str, number: int) -> Path:
    """Return the path of a job's script for ``launch.output_script``."""
    return Path(pattern.replace("{num}", str(number))).absolute()


def _numbered(pattern: str) -> str:
    path = Path(pattern)
    return str(path.with_name(f"{path.stem}-{{num}}{path.suffix}"))
