"""Sort the free options (`scheduler.extra` and others) into keys, arguments, removals and variables.

An option that has a key becomes that key, so that no request has two spellings. The options of a scheduler are data:
the `OptionTable` of its adapter. Must not know: any scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning import exclusions
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.planning.units import mebibytes, seconds

if TYPE_CHECKING:  # ranks import this module for names of options only
    from hpc_hydra.config.schema import Settings

Arg = tuple[str, str | None]


@dataclass(frozen=True)
class OptionTable:
    """The options of a scheduler: those that have keys, those that are refused, and how they relate.

    Attributes:
        keys: option → full key.
        short: other spelling of an option, mostly a letter → option.
        refused: option → what to write instead.
        refused_submit: the same, for the submit command only.
        lacks: unsupported field of a request → what to write instead.
        gpu_requests: supported values of ``system.gpu_request``; the first is the default.
        gpus: other options that request GPUs.
        generic_resources: those options that request GPUs only if their value names them, such as ``gres``.
        memory: other options that request memory.
        launch: options of the launch command that may differ from those of the job.
        exclusive: groups of mutually exclusive options. A group of one name: the option also has a key, and both may
            not be given.
        written_by: option that is not among ``keys`` → key that writes it.
        sizes: option that the adapter writes → (fields of the request that cause it, other fields that its value
            depends on).
        always_ours: options that the adapter writes into each script.
        comma_lists: options whose value is a list with commas.
        repeated: options that a command may contain several times; None: all.
        carriers: options whose value is an option of its own, as ``NAME=VALUE``.
        explained: for options not in the tables above: ``option`` or ``option=name`` → its key, or why the adapter
            writes it.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    refused_submit: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    gpu_requests: tuple[str, ...] = ()
    gpus: frozenset[str] = frozenset()
    generic_resources: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    launch: frozenset[str] = frozenset()
    exclusive: tuple[tuple[str, ...], ...] = ()
    written_by: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    always_ours: frozenset[str] = frozenset()
    comma_lists: frozenset[str] = frozenset()
    repeated: frozenset[str] | None = None
    carriers: frozenset[str] = frozenset()
    explained: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, name: str) -> str:
        """Return the canonical name of an option: long form, no leading dashes, dashes for underscores."""
        dashed = name.strip().lstrip("-").replace("_", "-")
        return self.short.get(dashed, dashed)

    @property
    def gpu_options(self) -> frozenset[str]:
        """All options that request GPUs."""
        return self.gpus | {request for request in self.gpu_requests if request != "none"}

    def requests_gpus(self, name: str, values: Iterable[str | None]) -> bool:
        """Whether an option with these values requests GPUs."""
        named = name not in self.generic_resources or any("gpu" in (value or "") for value in values)
        return name in self.gpu_options and named


NO_OPTIONS = OptionTable()
"""For a scheduler that takes all options as they are."""
GPU_REQUESTS = ("gpus-per-task", "gpus-per-node", "gres")
"""Values of ``system.gpu_request`` that request GPUs."""
_UNITS = {"resources.time_limit": seconds, "resources.mem_per_node": mebibytes}
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")


@dataclass
class Merged:
    """The result of `merge`."""

    settings: Settings  # with the keys set by options
    submit_args: list[Arg] = field(default_factory=list)
    launch_args: list[Arg] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    env: list[EnvVar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    own_gpus: str | None = None  # the key of an option that requests GPUs
    own_memory: str | None = None  # the key of an option that requests memory
    own_gpu_bind: str | None = None  # the key of an option that binds GPUs


def merge(settings: Settings, table: OptionTable) -> Merged:
    """Sort `scheduler.extra`, `submit_extra`, `launch_extra` and the system's arguments. Does not modify ``settings``.

    Raises:
        PlanError: an option that is refused or denied, with the key to use instead.
        ConfigError: an invalid name or value.
    """
    return _Merge(settings, table).run()


def spoken_for(settings: Settings, table: OptionTable) -> frozenset[str]:
    """Return the full keys that free options set, exclude or remove, and those whose option the site rejects."""
    asked = settings.scheduler
    away = [*asked.remove, *(one for one in asked.extra if one.startswith("~")), *settings.system.denied_flags]
    found = {key for written in (*asked.extra, *asked.submit_extra) for key in kin(table, written)[1]}
    return frozenset(found.union(*(kin(table, written.removeprefix("~"), alone=True)[1] for written in away)))


def kin(words: OptionTable, written: str, *, alone: bool = False) -> tuple[frozenset[str], frozenset[str]]:
    """Return the canonical names of an option and of those that it excludes, and their full keys.

    Args:
        alone: without the options that it excludes.
    """
    name = _name(words, written)
    names = {name}.union(*(group for group in words.exclusive if name in group and not alone))
    keys = {key for one in names if (key := words.keys.get(one) or words.written_by.get(one))}
    return frozenset(names), frozenset(keys - {"resources.gpus_per_proc"} if name in words.gpus else keys)


def _name(words: OptionTable, written: str) -> str:
    """Return the canonical name of a known option; of others, which may be variables, the name as written."""
    name, bare = words.canonical(written), written.strip().lstrip("-")
    known = {*words.keys, *words.refused, *words.gpus, *words.memory, *words.short.values()}
    return name if name in known else bare


class _Merge:
    def __init__(self, settings: Settings, words: OptionTable) -> None:
        own = {group.name: replace(getattr(settings, group.name)) for group in fields(settings)}
        self.done = Merged(type(settings)(**own))  # shallow copies: only plain values are set
        self.words = words
        self.denied = {self.name(flag) for flag in settings.system.denied_flags}
        self.args: dict[str, dict[str, list[str | None]]] = {"submit": {}, "launch": {}}
        self.sources: dict[tuple[str, str], str] = {}  # (command, option) or ("", full key) → the key that set it

    def name(self, written: str) -> str:
        return _name(self.words, written)

    def run(self) -> Merged:
        system, scheduler = self.done.settings.system, self.done.settings.scheduler
        for source, args, commands in (
            ("system.submit_args", system.submit_args, ("submit",)),
            ("system.launch_args", system.launch_args, ("launch",)),
            ("scheduler.extra", scheduler.extra, ("submit", "launch")),
            ("scheduler.submit_extra", scheduler.submit_extra, ("submit",)),
            ("scheduler.launch_extra", scheduler.launch_extra, ("launch",)),
        ):
            for written, value in args.items():
                self.option(written, value, source, commands)
        for written in scheduler.remove:
            self.remove(self.name(written), "scheduler.extra", ("submit", "launch"))
        self.done.notes += exclusions.apply(self.words, self.done.settings, self.args, self.sources)
        self.note_own_spellings()
        self.done.submit_args = _flat(self.args["submit"])
        self.done.launch_args = _flat(self.args["launch"])
        self.done.removed = sorted({*self.done.removed, *self.denied})
        self.check_denied()
        return self.done

    def option(self, written: str, value: Any, source: str, commands: tuple[str, ...]) -> None:
        key = f"{source}.{written}"
        if written.startswith("~"):
            self.remove(self.name(written[1:]), source, commands)
            return
        name = self.name(written)
        if not name or re.search(r"[\s=]", name):
            raise ConfigError(f"{written!r} is not the name of an option", where=key, fix=f"{source}: {{name: value}}")
        if name in self.denied:
            raise PlanError(
                f"{self.done.settings.system.name} rejects --{name}",
                where=key,
                fix="leave it out (system.denied_flags)",
            )
        if isinstance(value, (list, tuple)):
            value = self.one_or_repeated(name, value, key)
        if name in self.words.keys and self.as_key(name, value, key, source):
            return
        if name in self.words.refused:
            raise PlanError(f"--{name} cannot be set", where=key, fix=self.words.refused[name] or None)
        if name in self.words.refused_submit and commands == ("submit",):
            raise PlanError(f"--{name} cannot be set", where=key, fix=self.words.refused_submit[name])
        if VARIABLE.fullmatch(name) and source.startswith("scheduler."):
            text = option_text(value, key)
            self.done.env.append(EnvVar(name, "" if text is None else text, "force", origin=key))
            self.done.notes.append(f"{key} is not an option: the ranks get the environment variable {name}")
            return
        values = [option_text(item, key) for item in (value if isinstance(value, (list, tuple)) else [value])]
        for command in commands:
            before = self.sources.get((command, name), "")
            if before.rpartition(".")[0] == source and self.args[command].get(name, values) != values:
                raise _twice(before, key)
            self.args[command][name] = values
            self.sources[command, name] = key

    def one_or_repeated(self, name: str, values: Sequence[Any], key: str) -> Any:
        """Return the one value of a list, joined if there are several; the list if the option may be repeated."""
        if not values:
            raise ConfigError("an empty list has no value", where=key, fix="leave it out, or a key with ~ before it")
        dashed = name.replace("_", "-")
        if self.words.repeated is None or {name, dashed} & self.words.repeated:
            return values
        if len(values) == 1:
            return values[0]
        listed = [option_text(value, key) for value in values]
        if dashed in self.words.comma_lists and all(listed):
            return ",".join(str(text) for text in listed)
        raise PlanError(f"--{name} takes one value, not {len(values)}", where=key, fix=f"{key}={listed[-1] or 'VALUE'}")

    def note_own_spellings(self) -> None:
        """Note the options that request GPUs or memory in place of keys."""
        for command in ("launch", "submit"):
            for name, values in self.args[command].items():
                key = self.sources[command, name]
                if self.words.requests_gpus(name, values):
                    self.done.own_gpus = key
                if name in self.words.memory and command == "submit":
                    self.done.own_memory = key

    def remove(self, name: str, source: str, commands: tuple[str, ...]) -> None:
        for command in commands:
            self.args[command].pop(name, None)
        if source == "scheduler.extra":
            self.done.removed.append(name)
        elif name in self.words.keys:
            fix = "write it in scheduler.extra"
            raise PlanError(f"~{name} can only be removed from both commands", where=f"{source}.~{name}", fix=fix)

    def as_key(self, name: str, value: Any, key: str, source: str) -> bool:
        """Turn an option into its key; False if the key has no such value."""
        full = self.words.keys[name]
        if full == "resources.exclusive":
            if isinstance(value, str) and value.lower() not in ("true", "false"):
                return False  # exclusive=user
            value = True if value is None else value
        if full == "resources.gpus_per_proc" and isinstance(value, str) and not value.isdigit():
            return False  # gpus-per-task=h100:1
        if source.endswith("launch_extra") and name not in self.words.launch:
            raise PlanError(f"--{name} is the same for the whole job", where=key, fix=f"{full}={value}")
        if value is None:
            raise ConfigError(f"--{name} needs a value", where=key, fix=f"{full}=...")
        group, _, attribute = full.partition(".")
        target = getattr(self.done.settings, group)
        before = getattr(target, attribute)
        from hpc_hydra.config.values import check_value

        try:
            after = check_value(full, value)
            if full in _UNITS:
                _UNITS[full](after, key)
        except ConfigError as error:
            raise ConfigError(error.what, where=key, fix=error.fix) from None
        if source.startswith("system.") and before not in (None, False):
            return True  # the user's key overrides the site's argument
        said = self.sources.get(("", full), "")
        if said.rpartition(".")[0] == source and before != after:
            raise _twice(said, key)
        self.sources["", full] = key
        if before not in (None, False, after) and not source.startswith("system."):
            self.done.notes.append(f"{key}={value} overrides {full}={before}")
        setattr(target, attribute, after)
        if full == "system.gpu_bind" and not source.startswith("system."):
            self.done.own_gpu_bind = key
        return True

    def check_denied(self) -> None:
        """Refuse the user's keys that the site's scheduler rejects; defaults are left out."""
        for option, full in self.words.keys.items():
            group, _, attribute = full.partition(".")
            if option not in self.denied or group == "system" or option in self.words.gpu_options:
                continue
            value = getattr(getattr(self.done.settings, group), attribute)
            if value not in (None, False):
                raise PlanError(
                    f"{self.done.settings.system.name} rejects --{option}",
                    where=full,
                    fix=f"leave it out: {full}={'false' if value is True else 'null'} (system.denied_flags)",
                )


def gpu_request(settings: Settings, merged: Merged, shared: bool) -> str | None:
    """Return the one way in which GPUs are requested on this system; "none" if the site allows none.

    None leaves it to the adapter.

    Args:
        shared: the ranks of a node share its GPUs, so they cannot be requested per task.
    """
    if merged.own_gpus:
        return "none"
    denied = set(merged.removed)
    wanted = settings.system.gpu_request
    if wanted is None:
        wanted = "none" if denied & set(GPU_REQUESTS) else None
    if shared and wanted in (None, "gpus-per-task"):
        wanted = next((word for word in GPU_REQUESTS[1:] if word not in denied), "none")
    return "none" if wanted in denied else wanted


def _twice(first: str, second: str) -> PlanError:
    return PlanError(f"is the same option as {first}", where=second, fix=f"leave out one of {first} and {second}")


def option_text(value: Any, key: str) -> str | None:
    """Return the value of an option as text; None for a flag."""
    if value is None or value is True:
        return None
    if value is False:
        raise ConfigError("an option cannot be false", where=key, fix="a key with ~ before it removes an option")
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a string", where=key, fix=f"quote it: {key}='\"1.10\"'")
    if "\0" in value:
        raise ConfigError("holds a zero byte, which no command can take", where=key, fix="leave it out")
    return value


def _flat(args: Mapping[str, list[str | None]]) -> list[Arg]:
    return [(name, value) for name, values in args.items() for value in values]
