"""Where the directives and variables of a job come from: the key that holds each value, and the place that sets it.

A place is a file and line, the command line, a variable of the shell, a section of the user's own defaults, or a
default. Must not know: any scheduler's options (its table does), how origins are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_hydra.config import yaml_pitfalls
from hpc_hydra.config.schema import GROUPS, Settings
from hpc_hydra.config.store import conf_dir, expanded
from hpc_hydra.planning import queues
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import EnvVar, Plan, Request
from hpc_hydra.records.frozen_config import parse_override
from hpc_hydra.schedulers import capability_defaults, registry
from hpc_hydra.schedulers.options import key_of
from hpc_hydra.system import defaults, index
from hpc_hydra.system.probe import here
from hpc_hydra.ui.origins import Origin, Origins, about

DEFAULT, COMMAND_LINE = "default", "command line"
BAD_NODES = "bad nodes (hpc-hydra nodes)"
_DIRECTIVE = re.compile(r"# ?\S+ +(--?[\w-]+)(?:[= ](.*))?")
_KEY = re.compile(rf"({'|'.join(GROUPS)})\.\w+")
_FACTS = {  # key → fact from which planning derives its value
    "resources.procs_per_node": "system.gpus_per_node",
    "resources.gpus_per_proc": "system.gpus_per_node",
    "resources.cpus_per_proc": "system.cores_per_node",
}
_SIZES = ("resources.gpus_at_least", "resources.gpumem_at_least", "scheduler.hosts", "scheduler.hostfile")
_OF_PACKS = ("resources.procs_per_node", "resources.cpus_per_proc", "resources.gpus_per_proc")
_MAY_GROW = ("nodes", "mem_per_node")
_OF_QUEUES = {
    "scheduler.account": "account",
    "scheduler.qos": "qos",
    "scheduler.constraint": "constraint",
    "resources.mem_per_node": "mem_per_node",
    "resources.time_limit": "time_limit",
    "resources.cpus_per_proc": "cpus_per_proc",
}


@dataclass(frozen=True)
class Sources:
    """What has set the keys of a run.

    Attributes:
        asked, resolved: settings of the configuration, and after detection and the user's defaults.
        overrides: place → its overrides; the first place counts.
        files: returns key → file and line, of the composed files.
        attached: the run is attached to this console.
    """

    asked: Settings
    resolved: Settings
    overrides: Mapping[str, Sequence[str]]
    files: Callable[[], Mapping[str, tuple[str, int]]]
    attached: bool = False

    def place(self, key: str) -> str:
        """Return the place that sets a full key."""
        return self._override(key) or self._own.get(key) or self._shell(key) or self._file(key) or self._detected(key)

    def _override(self, key: str) -> str | None:
        for name, texts in self.overrides.items():
            for override in map(parse_override, texts):
                one = str(override.key_or_group)
                inside = isinstance(override.value(), dict)  # `scheduler={qos: high}`, and not `scheduler=slurm`
                names = key[len(one) :].strip(".").split(".")
                covers = (key == one or key.startswith(f"{one}.")) and ("." in one or inside)
                if covers and (not inside or _within(override.value(), names)):
                    return name
        return None

    @cached_property
    def _own(self) -> Mapping[str, str]:
        found = defaults.sources(self.asked, self.resolved, here())
        return {key: _near(where) for key, (where, _) in found.items()}

    def _shell(self, key: str) -> str | None:
        group, _, name = key.partition(".")
        if group != "scheduler" or not hasattr(self.asked.scheduler, name):
            return None
        if getattr(self.asked.scheduler, name) is not None or getattr(self.resolved.scheduler, name) is None:
            return None
        adapter = registry.adapter_for(self.resolved.scheduler.name)
        variable = capability_defaults.default_variables(adapter, attached=self.attached).get(name)
        return f"${variable} of your shell" if variable else None

    def _file(self, key: str) -> str | None:
        return _place(self._files, key)

    @cached_property
    def _files(self) -> Mapping[str, tuple[str, int]]:
        return self.files()

    def _detected(self, key: str) -> str:
        if not key.startswith("system.") or self.asked.system.kind != "auto":
            return DEFAULT
        if self.resolved.system.kind != "known":
            return "found on this machine" if self.resolved.system.kind != "probed" else "asked of the scheduler"
        return _place(self._preset, key) or f"system/{self.resolved.system.name}.yaml"

    @cached_property
    def _preset(self) -> Mapping[str, tuple[str, int]]:
        file = index.file(self.resolved.system.name, index.own(here().env))
        return yaml_pitfalls.places([yaml_pitfalls.Source(str(file), file.read_text("utf-8", "replace"), "_global_")])


def origins(sources: Sources, plan: Plan, script: str, packed: Plan | None = None) -> Origins:
    """Return the origins of a script's directives and of the plan's variables.

    Args:
        packed: plan of one of the runs, if ``plan`` is that of an allocation for several.
    """
    keys = _Keys(sources.resolved, registry.adapter_for(plan.request.scheduler).options)
    directives = []
    for name, value in _directives(script):
        key, words = keys.directive(name, value)
        if packed is not None and _is_of_pack(key, packed.request, plan.request):
            key = "launch.pack"
        place = _from(sources, keys, key, words)
        if key != "scheduler.nodelist" and any(_names(value, host) for host in plan.request.bad_nodes):
            place = BAD_NODES if place == DEFAULT else f"{place}; {BAD_NODES}"
        directives.append(Origin(name, value, key, place))
    variables = [_variable(sources, keys, var) for var in plan.redacted.env]
    return Origins(tuple(directives), tuple(variables))


def _is_of_pack(key: str, run: Request, allocation: Request) -> bool:
    """Whether the option that a key stands for is, in the allocation of packed runs, not that of a run."""
    field = key.removeprefix("resources.")
    return key in _OF_PACKS or (field in _MAY_GROW and getattr(run, field) != getattr(allocation, field))


def _names(value: str, host: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", value) is not None


def _directives(script: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the directives, which follow the first line of a script."""
    for line in script.splitlines()[1:]:
        found = _DIRECTIVE.fullmatch(line)
        if found is None:
            return
        yield found[1], found[2] or ""


def _variable(sources: Sources, keys: _Keys, var: EnvVar) -> Origin:
    source = ", ".join(text for text in (var.source, var.checked and f"checked {var.checked}") if text)
    key, name = var.origin, f".{var.name}"
    return Origin(
        var.name,
        var.value,
        f"{key.removesuffix(name)}.*" if key.endswith(name) else key,
        _from(sources, keys, keys.holding(key), ""),
        about(var),
        source,
    )


def _from(sources: Sources, keys: _Keys, key: str, words: str) -> str:
    """Return the place of a key's value; of the fact from which it is derived, if the key has none."""
    if not key or words:
        return words or DEFAULT
    if keys.has(key):
        return sources.place(key)
    fact = _FACTS.get(key, "")
    size = next((one for one in _SIZES if keys.has(one)), "") if key.startswith("resources.") else ""
    for other in (size, fact):
        if other and keys.has(other):
            return f"{other}: {sources.place(other)}"
    return DEFAULT


@dataclass(frozen=True)
class _Keys:
    """The keys behind a scheduler's options."""

    settings: Settings
    table: OptionTable

    def directive(self, name: str, value: str) -> tuple[str, str]:
        """Return the key of a directive, and words instead of a place where nothing of the user's is behind it."""
        option, repeated = self._name(name), self.table.repeated or ()
        if option in self.table.carriers:
            option, _, value = value.partition("=")
        key, reason = self.key(option, value), self._explained(option, value)
        if key.startswith("logging."):  # files of the ranks
            key, reason = "", reason or "the log of the job script"
        for group, fields in (("scheduler", ("submit_extra", "extra")), ("system", ("submit_args",))):
            if group == "system" and self.has(key):
                break  # the user's key overrides the site's argument
            for field in fields:
                for written, given in getattr(getattr(self.settings, group), field).items():
                    if self._name(written) == option and (option not in repeated or value in _texts(given)):
                        return f"{group}.{field}.{written}", ""
        if self.has(key) or not reason or _KEY.fullmatch(reason):
            return key, ""
        return "", reason

    def key(self, option: str, value: str) -> str:
        """Return the key that holds the value of an option; "" for an option without one."""
        key = self.table.keys.get(option) or self.table.written_by.get(option)
        if key is None and _KEY.fullmatch(self._explained(option, value)):
            key = self._explained(option, value)
        if key is None and option in self.table.sizes:
            key = key_of(self.table.sizes[option][0][0])
        if key is None and _KEY.fullmatch(self.table.refused.get(option, "")):
            key = self.table.refused[option]
        return self.holding(key or "")

    def holding(self, key: str) -> str:
        """Return the key that holds a value: the given one, or that of the queue or the system in its place."""
        if not key or self.has(key):
            return key
        system, queue = self.settings.system, queues.choose(self.settings.system, self.settings.scheduler.queue)
        if key == "scheduler.queue":
            return "system.default_queue" if system.default_queue else key
        if key == "scheduler.user_group" and self.has("scheduler.account"):  # either is the group to charge
            return "scheduler.account"
        field = _OF_QUEUES.get(key)
        if field and getattr(queue.profile, field) is not None:
            return f"{queue.key}.{field}"
        return key

    def has(self, key: str) -> bool:
        """Whether a full key has a value."""
        node: Any = self.settings
        for word in key.split(".") if key else ():
            if isinstance(node, Mapping) and word in node and node[word] is None:
                return True  # a flag
            node = node.get(word) if isinstance(node, Mapping) else getattr(node, word, None)
        return node is not self.settings and node not in (None, False, [], {}, "")

    def _explained(self, option: str, value: str) -> str:
        explained = self.table.explained
        return explained.get(f"{option}={value.partition('=')[0]}") or explained.get(option, "")

    def _name(self, written: str) -> str:
        return self.table.canonical(written)


def _texts(given: Any) -> list[str]:
    return [str(one) for one in (given if isinstance(given, (list, tuple)) else [given])]


def _within(value: Any, names: Sequence[str]) -> bool:
    """Whether a mapping has a value at ``names``, one for each level; the first may be empty for the mapping itself."""
    for name in filter(None, names):
        if not isinstance(value, dict):
            return False
        value = {str(key): each for key, each in value.items()}.get(name)
    return value is not None


def _place(places: Mapping[str, tuple[str, int]], key: str) -> str | None:
    """Return the place of a key or of the closest mapping around it; None if only our defaults have it."""
    while key not in places:
        key, dot, _ = key.rpartition(".")
        if not dot or "." not in key:
            return None
    path, line = places[key]
    ours = _relative(Path(path), conf_dir())
    if ours is not None:
        return f"{ours}:{line}" if ours.parts[0] == "system" else None
    return f"{_near(path)}:{line}"


def _near(path: str) -> str:
    """Return a path, or a text that begins with one, as it is read best from here."""
    for folder, start in ((Path.cwd(), ""), (expanded("~"), "~/")):
        if path.startswith(f"{folder}/") and str(folder) != "/":
            return start + path[len(str(folder)) + 1 :]
    return path


def _relative(path: Path, folder: Path) -> Path | None:
    return path.relative_to(folder) if path.is_relative_to(folder) else None
