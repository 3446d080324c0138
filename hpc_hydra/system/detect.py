"""`system=auto` and `scheduler=auto`: identifies this machine and its scheduler.

Order: the site's variable or file, the fully-qualified host name, the short host name. No pattern matches names that
several sites use (nid001234, login01, gn05). The scheduler is the machine's own, else one whose command answers;
variables of a surrounding job do not count.
Must not know: torch, Hydra, sizes of jobs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_hydra.config.schema import THIS_MACHINE, Settings, SystemConfig
from hpc_hydra.config.store import shipped
from hpc_hydra.errors import ConfigError, HpcHydraError, PlanError, SchedulerError
from hpc_hydra.planning.size import UNKNOWN as UNKNOWN
from hpc_hydra.planning.types import Request
from hpc_hydra.planning.units import clock
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import Scheduler
from hpc_hydra.schedulers.capabilities import AutoDetection, ClusterName, NodeFacts
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.suggest import nearest
from hpc_hydra.system import allocation, defaults, hostfile, index, shell_defaults
from hpc_hydra.system.probe import COMMAND_S, Probe, Unanswered, here


@dataclass(frozen=True)
class Step:
    """One check: what was examined, what was found, and whether it decided."""

    looked_at: str
    found: str
    decided: bool = False


@dataclass(frozen=True)
class Detection:
    """The result (None: nothing found), and the checks that led to it."""

    name: str | None
    steps: tuple[Step, ...]
    late: tuple[tuple[str, str], ...] = ()  # schedulers and their commands that are there and did not answer in time
    failed: tuple[tuple[str, str, str], ...] = ()  # those that failed at once, and what they said


DEBUG_ON = ("1", "on", "y", "yes", "t", "true")
"""Values of DEBUG in the shell that switch `logging.debug` on."""


def resolve(
    settings: Settings,
    *,
    probe: Probe | None = None,
    attached: bool = False,
    earlier: Request | None = None,
    said: Collection[str] = (),
) -> Settings:
    """Resolve what is `auto` or probed, and apply the user's own defaults.

    A machine that is recognised gives the same as `system=<name>`, with the user's own `system.*` over it.

    Args:
        attached: for one run at this console.
        earlier: what a run that is planned again asked for; what the shell had said then is in it.
        said: full keys of the command line: the person's defaults do not fill them, whatever their value is.

    Raises:
        PlanError: the machine's scheduler has no adapter.
        ConfigError: the person's defaults, or machines of their own, cannot be used.
        SchedulerError: `scheduler=auto`, and a scheduler's command is there but does not answer in time.
    """
    probe = probe or here()
    if settings.logging.debug is None and probe.env.get("DEBUG", "").lower() in DEBUG_ON:
        settings = dataclasses.replace(settings, logging=dataclasses.replace(settings.logging, debug=True))
    system, found = _recognised(settings, probe)
    if settings.scheduler.kind == "auto":
        name = system.scheduler or _answering_or_local(probe)
        scheduler = dataclasses.replace(settings.scheduler, name=_adapter(name, system), kind="known")
        settings = dataclasses.replace(settings, scheduler=scheduler)
    is_probed = system.kind != "known"
    done = _with_defaults(settings, system, found, probe, said)
    done = (
        shell_defaults.again(done, earlier)
        if earlier is not None
        else shell_defaults.apply(done, probe, attached=attached)
    )
    if is_probed:
        done = dataclasses.replace(done, system=_probed(done, probe))
    return dataclasses.replace(done, scheduler=hostfile.read(done.scheduler, probe))


def stated(settings: Settings, *, probe: Probe | None = None, said: Collection[str] = ()) -> Settings:
    """Return the settings with the user's own defaults as in `resolve`, but leave what is `auto`.

    Detects a machine or a scheduler only if a file of the user may set `defaults.SIZES`.

    Raises `ConfigError`: the person's defaults, or machines of their own, cannot be used.
    """
    probe = probe or here()
    sections = defaults.sections(probe)
    own = index.own(probe.env) if settings.system.kind == "auto" else ()
    is_auto = "auto" in (settings.system.kind, settings.scheduler.kind)
    if not own and not (any(map(defaults.sets_size, sections.values())) if is_auto else sections):
        return settings
    system, found = _recognised(settings, probe)
    known = settings
    if settings.scheduler.kind == "auto":
        names = (system.name,) if system.kind == "known" else (THIS_MACHINE, UNKNOWN)
        applied = [sections.get(name, {}) for name in (*names, defaults.EVERYWHERE)]
        applied += [index.others(found, own)] if found else []
        if not any(map(defaults.sets_size, applied)):
            return settings
        name = system.scheduler or answering(probe).name
        scheduler = dataclasses.replace(settings.scheduler, name=name if name in registry.names() else THIS_MACHINE)
        known = dataclasses.replace(settings, scheduler=scheduler)
    done = _with_defaults(known, system, found, probe, said)
    scheduler = dataclasses.replace(done.scheduler, name=settings.scheduler.name)
    return dataclasses.replace(done, system=settings.system, scheduler=scheduler)


def _recognised(settings: Settings, probe: Probe) -> tuple[SystemConfig, str | None]:
    """Return the facts of the system, and its name if `system=auto` recognises this machine."""
    if settings.system.kind != "auto" or (found := machine(probe).name) is None:
        return settings.system, None
    return _over(index.preset(found, index.own(probe.env)), settings.system), found


def _with_defaults(
    settings: Settings, system: SystemConfig, found: str | None, probe: Probe, said: Collection[str]
) -> Settings:
    """Apply the user's own defaults for this system, whose scheduler is known."""
    if found:
        settings = defaults.of_machine(settings, found, probe, said)
    if system.kind != "known":
        is_local = settings.scheduler.name == THIS_MACHINE
        name, kind = (THIS_MACHINE, THIS_MACHINE) if is_local else (UNKNOWN, "probed")
        system = dataclasses.replace(system, name=name, kind=kind)
    return defaults.apply(dataclasses.replace(settings, system=system), probe, said)


def named(error: HpcHydraError, asked: Settings, resolved: Settings) -> HpcHydraError:
    """Return the error, naming the user's defaults file as well if it has set the value."""
    return defaults.named(error, asked, resolved, here())


def machine(probe: Probe | None = None, without: tuple[str, ...] = ()) -> Detection:
    """Identify this machine among the known ones. ``without``: machines whose files are unusable."""
    probe = probe or here()
    return probe.once("machine", lambda: _machine(probe, without))


def answering(probe: Probe | None = None) -> Detection:
    """Return the first scheduler with an adapter whose command answers on this machine."""
    probe = probe or here()
    return probe.once("scheduler", lambda: _answering(probe))


def notes(
    asked: Settings, resolved: Settings, probe: Probe | None = None, *, attached: bool = False
) -> tuple[str, ...]:
    """What is said of the person's defaults, sections that no machine has, a scheduler whose command fails, and
    what the shell says to the scheduler's commands.

    ``asked``: the settings before `resolve`, which may have left the choice to it.
    """
    probe = probe or here()
    known = (*index.names(index.own(probe.env)), *index.NOT_MACHINES, UNKNOWN, resolved.system.name)
    strange = tuple(
        f"{defaults.path(probe.env)}: there is no machine {name!r}; did you mean {' or '.join(near)}?"
        for name, near in defaults.unknown_sections(probe, known).items()
        if near
    )
    return (
        *strange,
        *defaults.notes(asked, resolved, probe),
        *_failed(asked, resolved, probe),
        *_sized_blindly(resolved, probe),
        *_unlisted_queue(resolved, probe),
        *shell_defaults.notes(asked, resolved, probe, attached=attached),
    )


def _failed(asked: Settings, resolved: Settings, probe: Probe) -> tuple[str, ...]:
    if asked.scheduler.kind != "auto" or resolved.scheduler.name != THIS_MACHINE or resolved.system.kind == "known":
        return ()
    return tuple(
        f"{command} is here but fails ({said}): this runs on this machine; scheduler={name} to submit anyway"
        for name, command, said in answering(probe).failed
    )


def _sized_blindly(resolved: Settings, probe: Probe) -> tuple[str, ...]:
    system = resolved.system
    adapter = adapter_for(resolved.scheduler.name)
    if system.kind != "probed" or not isinstance(adapter, NodeFacts):
        return ()
    if system.cores_per_node is not None and system.gpus_per_node is not None:
        return ()
    text = _nodes(adapter, probe)
    return (f"{_says_nothing(adapter, text)}: sizes may differ",) if isinstance(text, Unanswered) else ()


def _listing(resolved: Settings, probe: Probe) -> tuple[NodeFacts, str] | None:
    """Return what the scheduler says of its nodes, for a new job on a system known by nothing else; None: nothing."""
    adapter = adapter_for(resolved.scheduler.name)
    if resolved.system.kind != "probed" or not isinstance(adapter, NodeFacts):
        return None
    text = _nodes(adapter, probe)
    if isinstance(text, Unanswered) or allocation.current(adapter, resolved.launch.inside, probe) is not None:
        return None
    return adapter, text


def _unlisted_queue(resolved: Settings, probe: Probe) -> tuple[str, ...]:
    """Return a note if the scheduler does not list the queue. It may be hidden, so the scheduler decides."""
    queue = _partition(resolved)
    found = _listing(resolved, probe) if queue else None
    if not queue or found is None:
        return ()
    adapter, text = found
    listed = adapter.listed_queues(text)
    strange = [name for name in queue.split(",") if name not in listed]
    if not listed or not strange:
        return ()
    shown = ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "")
    near = nearest(strange[0], listed)
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    lists = f"{adapter.nodes_command()[0]} lists {shown}"
    return (f"partition {', '.join(strange)}{meant}: {lists}; without facts of its nodes, sizes may differ",)


def beyond_partition(resolved: Settings, request: Request, probe: Probe | None = None) -> tuple[str, ...]:
    """Return notes about what exceeds the partition's nodes or time limit: the job may stay pending. Asks nothing new.

    No errors: nodes may be added, and a QOS may override a time limit.
    """
    found = _listing(resolved, probe or here())
    if found is None:
        return ()
    adapter, text = found
    queue, notes = _partition(resolved), []
    nodes, limit = request.nodes + request.spare_nodes, request.time_limit
    has = adapter.largest_queue(text, queue)
    if has is not None and nodes > has[1]:
        asked = f"resources.nodes={request.nodes}" if resolved.resources.nodes else f"{request.nodes} nodes"
        if request.spare_nodes:
            asked += f" and launch.spare_nodes={request.spare_nodes}"
        notes.append(f"{asked}: partition {has[0]} has {has[1]}")
    gives = None if adapter.takes_less_time(request) else adapter.longest_queue(text, queue)
    if gives is not None and limit is not None and limit > gives[1]:
        notes.append(f"resources.time_limit={clock(limit)}: partition {gives[0]} allows {clock(gives[1])}")
    return tuple(f"{note}, so this cannot start as the cluster is now" for note in notes)


def node_count(adapter: Scheduler, queue: str | None) -> int | None:
    """Return the number of nodes of a queue in any state, as the scheduler reports it; None if unknown."""
    text = _nodes(adapter, here()) if isinstance(adapter, NodeFacts) else ""
    if not isinstance(adapter, NodeFacts) or isinstance(text, Unanswered):
        return None
    largest = adapter.largest_queue(text, queue)
    return None if largest is None else largest[1]


def cluster(adapter: ClusterName) -> str:
    """Return the name of the cluster to which jobs are submitted; empty if unknown."""

    def ask() -> str:
        try:
            return adapter.parse_cluster(here().run(adapter.cluster_command()) or "")
        except Unanswered:
            return ""

    return here().once(("cluster", adapter.name), ask)


def _answering_or_local(probe: Probe) -> str:
    """Raise `SchedulerError` if a scheduler is slow to answer, instead of running on this machine."""
    found = answering(probe)
    if found.name is None and found.late:
        name, command = found.late[0]
        raise SchedulerError(
            f"{command} is here but does not answer ({COMMAND_S:g} s)",
            where="scheduler=auto",
            fix=f"scheduler={name} to submit anyway, scheduler={THIS_MACHINE} to run here",
        )
    return found.name or THIS_MACHINE


def explain(probe: Probe | None = None) -> tuple[Step, ...]:
    """Return the checks behind the choice of machine and scheduler, in order."""
    probe = probe or here()
    found = machine(probe)
    if found.name is None:
        return (*found.steps, *answering(probe).steps)
    own = index.preset(found.name, index.own(probe.env)).scheduler
    return (*found.steps, Step(f"scheduler of {found.name}", own or "not known", own is not None))


def _machine(probe: Probe, without: tuple[str, ...]) -> Detection:
    steps: list[Step] = []
    signs = index.signs(index.own(probe.env), without)
    for name in sorted({name for sign in signs for name, _ in sign.site_env}):
        value = probe.env.get(name)
        found = next((sign.name for sign in signs if value and (name, value) in sign.site_env), None)
        steps.append(Step(f"variable {name}", repr(value) if value else "not set", found is not None))
        if found:
            return Detection(found, tuple(steps))
    for path in sorted({path for sign in signs for path, _ in sign.site_file}):
        value = (probe.read(path) or "").strip()
        found = next((sign.name for sign in signs if value and (path, value) in sign.site_file), None)
        steps.append(Step(f"file {path}", repr(value) if value else "not there", found is not None))
        if found:
            return Detection(found, tuple(steps))
    host = probe.hostname()
    full = probe.full_name()
    found = _by_host(full, signs) if full else None
    steps.append(Step("full host name", full or "not known", found is not None))
    if found or (full and full.count(".") >= 2):  # a domain of its own speaks for itself: frontier1.example.org
        return Detection(found, tuple(steps))
    found = _by_host(host.partition(".")[0], signs)
    steps.append(Step("host name", host, found is not None))
    return Detection(found, tuple(steps))


def _by_host(name: str, signs: Iterable[index.Signs]) -> str | None:
    for sign in signs:
        try:
            if any(re.fullmatch(pattern, name, re.IGNORECASE) for pattern in sign.hostnames):
                return sign.name
        except re.error as error:
            where = f"system.hostnames of {sign.name}"
            raise ConfigError(f"{error.pattern!r} is no regular expression", where=where, fix=r"atlas\d+") from error
    return None


def _answering(probe: Probe) -> Detection:
    steps: list[Step] = []
    late: list[tuple[str, str]] = []
    failed: list[tuple[str, str, str]] = []
    for name, adapter in _detectable():
        if adapter.is_disabled(probe.env):
            steps.append(Step(f"scheduler {name}", "a variable says that there is none"))
            continue
        command = adapter.answer_command()
        try:
            answer = probe.run(command)
        except Unanswered as error:
            steps.append(Step(f"command {' '.join(command)}", error.said))
            if error.late:
                late.append((name, command[0]))
            else:
                failed.append((name, command[0], error.said))
            continue
        up = answer is not None and adapter.answers(answer)
        first = (answer or "").strip().partition("\n")[0]
        steps.append(Step(f"command {' '.join(command)}", first or "no answer", up))
        if up:
            return Detection(name, tuple(steps))
    end = Step("no scheduler answers in time", "none is chosen") if late else Step("no scheduler", THIS_MACHINE, True)
    return Detection(None, (*steps, end), tuple(late), tuple(failed))


def _detectable() -> list[tuple[str, AutoDetection]]:
    """Return the schedulers of this package that can be probed, by name, in the order of the probes."""
    found = [(name, adapter_for(name)) for name in shipped("scheduler") if name != "auto"]
    able = [(name, adapter) for name, adapter in found if isinstance(adapter, AutoDetection)]
    return sorted(able, key=lambda pair: pair[1].detection_order)


def _adapter(name: str, system: SystemConfig) -> str:
    """Return ``name`` if it has an adapter."""
    if name in shipped("scheduler"):
        return name
    if name in registry.names():
        return name
    title = name.upper()
    raise PlanError(
        f"{system.name} runs {title}, and there is no {title} adapter yet",
        where="system.scheduler",
        fix=f"scheduler={THIS_MACHINE} inside a job that you have started there, "
        "or another system (`hpc-hydra systems`)",
    )


def _over(preset: SystemConfig, own: SystemConfig) -> SystemConfig:
    """Return a machine's facts, overridden by what the user has set."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(SystemConfig):
        value = getattr(own, field.name)
        if field.name in ("name", "kind") or value in (None, [], {}):
            continue
        old = getattr(preset, field.name)
        changes[field.name] = _deep(old, value) if isinstance(old, dict) else value
    return dataclasses.replace(preset, **changes)


def _deep(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    done = dict(below)
    for key, value in above.items():
        old = done.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            done[key] = _deep(old, value)
        elif dataclasses.is_dataclass(old) and dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            kept = {name: inner for name, inner in fields.items() if inner not in (None, {})}
            done[key] = dataclasses.replace(old, **kept)  # type: ignore[type-var]
        else:
            done[key] = value
    return done


def _probed(settings: Settings, probe: Probe) -> SystemConfig:
    """Return the facts of a machine without a file, from this machine or from the scheduler's nodes."""
    system = settings.system
    facts: Mapping[str, Any] = {}
    adapter = adapter_for(settings.scheduler.name)
    if settings.scheduler.name == THIS_MACHINE:
        seen = probe.once("hardware", probe.hardware)
        facts = {
            "cores_per_node": seen.cores,
            "gpus_per_node": seen.gpus,
            "gpu_vendor": seen.gpu_vendor,
            "gpu_arch": seen.gpu_arch,
            "mem_per_gpu": seen.mem_per_gpu,
            "mem_per_node": None if seen.memory is None else f"{seen.memory}M",
            "numa_domains": seen.numa_domains,
        }
    elif isinstance(adapter, NodeFacts):
        held = allocation.current(adapter, settings.launch.inside, probe)
        text = _nodes(adapter, probe)
        if isinstance(text, Unanswered):
            _without_answer(_says_nothing(adapter, text), settings, is_held=held is not None)
            text = ""
        with_gpus = settings.resources.gpus_per_proc != 0
        facts = adapter.node_facts(text, _partition(settings), with_gpus=with_gpus)
        if held is not None:  # what there is, is what the allocation has
            facts = {**facts, "cores_per_node": min(held.slots), "gpus_per_node": min(held.gpus)}
    missing = {key: value for key, value in facts.items() if getattr(system, key) is None}
    return dataclasses.replace(system, scheduler=system.scheduler or settings.scheduler.name, **missing)


def _nodes(adapter: NodeFacts, probe: Probe) -> str | Unanswered:
    """Query the scheduler for its nodes; empty if it has no such command."""

    def ask() -> str | Unanswered:
        try:
            return probe.run(adapter.nodes_command()) or ""
        except Unanswered as error:
            is_disabled = isinstance(adapter, AutoDetection) and adapter.is_disabled(probe.env)
            return "" if is_disabled else error

    return probe.once(("nodes", adapter.name), ask)


def _says_nothing(adapter: NodeFacts, error: Unanswered) -> str:
    return f"{adapter.nodes_command()[0]} is here but tells nothing of the nodes ({error.said})"


def _without_answer(what: str, settings: Settings, *, is_held: bool) -> None:
    """A job of one process without GPUs is not what was meant where nobody knows the nodes. Raises `SchedulerError`.

    An allocation tells what it has, and who says all of a node needs no answer. A dry run is noted.
    """
    system = settings.system
    is_told = system.cores_per_node is not None and system.gpus_per_node is not None
    if is_held or is_told or settings.launch.dry_run:
        return
    raise SchedulerError(
        what,
        where=f"system={system.name if system.name != UNKNOWN else 'auto'}",
        fix="the same command again, or say what a node has: system.cores_per_node=64 system.gpus_per_node=4",
    )


def _partition(settings: Settings) -> str | None:
    name = settings.scheduler.queue or settings.system.default_queue
    profile = settings.system.queues.get(name) if name else None
    return profile.partition or name if profile else name
