"""Job scripts: what a group of runs needs to be one, and where they are written.

Must not know: how scripts are submitted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import hpc_hydra
from hpc_hydra import envvars
from hpc_hydra.config.store import conf_dir
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
EARLIER = "earlier"  # in place of a job's key: what its sweep has had in the queue before


def spec(group: Group, key: str, plan_key: str, root: Path, program: Program) -> JobSpec:
    """All that an adapter needs to write the script of a group."""
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
        home=str(Path.home()),
    )


def _pythons(plan: Plan) -> tuple[str, str]:
    """The interpreters on the node and of the ranks, which may be in a container."""
    if plan.container:
        return sys.executable, plan.python or container.PYTHON
    return plan.python or sys.executable, plan.python or sys.executable


def _needs(group: Group, root: Path, program: Program) -> tuple[str, ...]:
    """Directories that a container has to have besides the sweep and the current directory."""
    found = {str(run.dir) for run in group.runs if not run.dir.is_relative_to(root)}
    if program.kind == "script":
        found.add(str(Path(program.target).parent))
    if program.sys_path0 and program.kind != "command":
        found.add(program.sys_path0)
    return tuple(sorted(found))


def pack_spec(group: Group, key: str, plan_key: str, root: Path, program: Program) -> JobSpec:
    """All that an adapter needs to write the script of an allocation for several runs."""
    assert group.pack is not None
    made = spec(group, key, plan_key, root, program)
    node = made.finish_command[:-1]  # on the node; the runs alone are in their containers
    return replace(
        made, rank_command=(*node, "pack"), finish_command=(*node, "pack", "--failed"), packs=group.pack.sizes
    )


def steps(group: Group, made: JobSpec, plan_key: Callable[[Plan], str]) -> list[JobSpec]:
    """A spec for each plan of packed runs, whose script starts one of them; none where runs are not packed."""
    if group.pack is None:
        return []
    node = made.rank_command[:-1]
    found = []
    scheduler = registry.adapter_for(group.plan.request.scheduler)
    sets_up = isinstance(scheduler, Packing) and scheduler.setup_per_run
    for plan in dict.fromkeys(run.plan for run in group.runs):
        _, inside = _pythons(plan)
        bare = plan if sets_up else replace(plan, request=replace(plan.request, setup_lines=()))  # the job has run them
        found.append(
            replace(
                made,
                plan=bare,
                runs=tuple(run.num for run in group.runs if run.plan == plan),
                packs=(),
                rank_command=(inside, *node[1:], "rank"),
                finish_command=(*node, "finish"),
                environ={envvars.PLAN: plan_key(plan)},
            )
        )
    return found


def inside(spec: JobSpec, held: Allocation | None) -> JobSpec:
    """``spec`` of runs that are steps of ``held``: their scripts run where the launcher does. Raises `ConfigError`."""
    if held is None:
        return spec
    if spec.packs:
        raise ConfigError(
            f"makes jobs, and runs in an allocation ({held.job_id}) share that anyway",
            where="launch.pack",
            fix="launch.pack=null, or launch.inside=submit",
        )
    return replace(spec, attached=True, held=held)


def tag(key: str) -> str:
    """A word that no other submission has."""
    return f"hpc_hydra-{os.urandom(6).hex()}-{key}"


def retag(path: Path, old: str, new: str) -> None:
    """Give a written script another tag, before it is submitted once more."""
    with suppress(FileNotFoundError):
        write_script(path, path.read_text("utf-8", "surrogateescape").replace(old, new))


def sharing(jobs: Jobs, there: Mapping[str, Sequence[str]] | None = None) -> list[tuple[Group, JobSpec, Path]]:
    """The same jobs, of which no more than ``scheduler.array_parallelism`` elements run at once on each scheduler.

    Args:
        there: by scheduler, ids of what is in its queue of the same sweep and counts, too. The jobs share the room that
            this leaves; where it leaves none, they begin after its end.
    """
    done = list(jobs)
    for name in {spec.plan.request.scheduler for _, spec, _ in jobs if spec.held is None}:
        at = [
            i
            for i, (_, spec, _) in enumerate(jobs)
            if spec.plan.request.scheduler == name and spec.plan.request.array_parallelism is not None
        ]
        others = len((there or {}).get(name, ()))
        if not at or (len(at) < 2 and not others) or not registry.has_queue(name):
            continue
        most = min(jobs[i][1].plan.request.array_parallelism or 1 for i in at)
        room, first = (most - others, "") if others < most else (most, EARLIER)
        for i, (width, before) in zip(at, lanes([jobs[i][1].elements for i in at], room), strict=True):
            group, spec, path = jobs[i]
            plan = replace(spec.plan, request=replace(spec.plan.request, array_parallelism=width))
            follows = jobs[at[before]][1].key if before is not None else first
            done[i] = (group, replace(spec, plan=plan, follows=follows), path)
    return done


def following(spec: JobSpec, path: Path, jobs: Sequence[tuple[str, ...]], adapter: Scheduler) -> JobSpec:
    """``spec``, and its script, to begin after the end of the jobs with these ids, however they end."""
    request = spec.plan.request
    assert isinstance(adapter, Dependencies)  # `throttled` asks
    dependency = adapter.after(jobs)[0].replace("afterok:", "afterany:", 1)
    dependency = adapter.all_of([*([request.dependency] if request.dependency else []), dependency])
    spec = replace(spec, plan=replace(spec.plan, request=replace(request, dependency=dependency)))
    write_script(path, adapter.script(spec))
    return spec


def one_by_one(group: Group, spec: JobSpec, adapter: Scheduler) -> list[tuple[Group, JobSpec, Path]]:
    """Write a script for each element of an array, a run or the allocation of several, in place of the one for all."""
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
    """The first number of a job that no script of the sweep has."""
    keys = [path.stem for path in SweepPaths(root).jobs.glob("job*.sh")]
    return 1 + max((int(key[3:]) for key in keys if key[3:].isdigit()), default=-1)


def check_output(pattern: str | None, jobs: Jobs) -> None:
    """Refuse one file for several scripts. Raises `ConfigError`."""
    if pattern is None or pattern == "-" or "{num}" in pattern or len(jobs) == 1:
        return
    raise ConfigError(
        f"{len(jobs)} job scripts cannot all be written to {pattern}",
        where="launch.output_script",
        fix=f"a name for each: \"launch.output_script='{_numbered(pattern)}'\"",
    )


def write(
    jobs: Jobs, adapters: Mapping[str, Scheduler], pattern: str | None, plan_key: Callable[[Plan], str] = str
) -> None:
    """Write the scripts into the sweep, and where ``launch.output_script`` says; ``plan_key`` names packed plans.

    Raises `ConfigError`.
    """
    alone = [spec for group, spec, _ in jobs if group.pack is None]
    together = [step for group, spec, _ in jobs for step in steps(group, spec, plan_key)]
    write_container([spec for spec in (*alone, *together) if spec.plan.container])
    for made in (*(spec for _, spec, _ in jobs), *together):
        job_script.write_secrets(made)
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


def write_container(specs: Sequence[JobSpec]) -> None:
    """What the containers of these jobs need in the sweep directory. Raises `ConfigError`, and has written nothing."""
    for spec in specs:
        check_container(spec)
    if specs:
        write_library(SweepPaths(specs[0].sweep).lib)
    for spec in specs:
        for path, text in container.files(spec).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, text.encode())


def check_container(spec: JobSpec) -> None:
    """Refuse, before anything is queued, an image or a mount that is a path and not there. Raises `ConfigError`."""
    box = spec.plan.container
    if box is None:
        return
    if box.image.startswith(("/", "./", "../", "~")):
        path = Path(spec.workdir, box.image).expanduser()
        if not path.exists():
            raise ConfigError("there is no such image", where=f"container.image={box.image}", fix="its absolute path")
        if not os.access(path, os.R_OK):
            raise ConfigError("cannot be read", where=f"container.image={box.image}", fix=f"chmod a+r {path}")
    for number, mount in enumerate(box.mounts):
        if not Path(mount.source).exists():
            raise ConfigError(
                f"there is no {mount.source}", where=f"container.mounts[{number}]", fix="a path of this machine's"
            )


def write_library(lib: Path) -> None:
    """What ranks in a container need of this package: the host's Python is not theirs. Written where it differs."""
    package = Path(hpc_hydra.__file__).parent
    sources = {path.relative_to(package.parent): path for path in sorted(package.rglob("*.py"))}
    conf = conf_dir()
    sources |= {Path("hpc_hydra/conf", path.relative_to(conf)): path for path in sorted(conf.rglob("*.yaml"))}
    wanted = {name: path.read_bytes() for name, path in sources.items() if "cli" not in name.parts}
    wanted[Path(container.ENTER)] = container.ENTER_SCRIPT.encode()
    for name, text in wanted.items():
        target = lib / name
        if not target.exists() or target.read_bytes() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, text)


def _write_pack(group: Group, pack: Pack, spec: JobSpec, adapter: Scheduler, plan_key: Callable[[Plan], str]) -> None:
    assert isinstance(adapter, Packing)  # `check_packing` was called
    paths, room = SweepPaths(spec.sweep), pack.room
    shares = {}
    for step in steps(group, spec, plan_key):
        key = step.environ[envvars.PLAN]
        shares[key] = to_json(share(step.plan))
        write_script(paths.step_script(spec.key, key), adapter.step_script(step))
    starts = [sum(pack.sizes[:i]) for i in range(len(pack.sizes))]
    packs = [list(group.nums[start : start + size]) for start, size in zip(starts, pack.sizes, strict=True)]
    data = {
        "nodes": room.request.nodes, "cpus": room.cpus, "gpus": room.gpus, "mem": room.mem, "at_a_time": room.at_a_time,
        "shares": shares,
    }  # fmt: skip
    text = json.dumps(data, indent=1)[:-2] + ',\n "packs": ' + json.dumps(packs) + "\n}\n"
    write_bytes(paths.pack(spec.key), text.encode())


def by_hand(jobs: Jobs, adapters: Mapping[str, Scheduler], pattern: str | None = None) -> str:
    """What to type to start the runs of scripts that were not submitted; ``pattern`` as in `write`."""
    lines = ["scripts are written, nothing is submitted; to start them:"]
    for number, (group, spec, written) in enumerate(jobs):
        path = written if pattern in (None, "-") else output(str(pattern), number)
        lines += [f"  {line}" for line in commands_by_hand(adapters[group.plan.request.scheduler], spec, path)]
    if jobs and pattern is not None:
        lines.append(reads(jobs[0][1].sweep))
    return "\n".join(lines)


def reads(sweep: Path) -> str:
    """What a script elsewhere (``launch.output_script``) needs besides itself."""
    return f"job scripts read {sweep}, and runs write there: keep it (launch.launch_dir=DIR chooses it)"


def output(pattern: str, number: int) -> Path:
    """Where ``launch.output_script`` has the script of a job."""
    return Path(pattern.replace("{num}", str(number))).absolute()


def _numbered(pattern: str) -> str:
    path = Path(pattern)
    return str(path.with_name(f"{path.stem}-{{num}}{path.suffix}"))
