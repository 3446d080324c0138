"""``hpc-hydra systems``: list the known machines, say which one this is and why, and explain one of them.

Must not know: Hydra, jobs. rich is imported only to print a table.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_hydra.cli.scan import Option, named, scan_name
from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import QueueConfig, SystemConfig
from hpc_hydra.config.secrets import MASK, is_secret, masked
from hpc_hydra.config.store import shipped
from hpc_hydra.errors import ConfigError, SchedulerError
from hpc_hydra.planning import requirements
from hpc_hydra.system import defaults, detect, index, preset_check
from hpc_hydra.system.probe import Probe, here
from hpc_hydra.ui import streams

USAGE = """usage: hpc-hydra systems [NAME] [--config-dir DIR] [--config-name NAME] [--json]

Without NAME: list the known machines, which one this is, and why.
With NAME:    show its facts, queues and limits, each variable with its reason, and your own defaults for it.

options:
  -h, --help                      show this help
  --json                          machine-readable output
  -cd, --config-dir DIR           directory of your own configuration: includes machines of DIR/system,
                                  in addition to those of ~/.config/hpc_hydra/system
  -cn, --config-name NAME         also say which machine this configuration selects

example: hpc-hydra systems frontier
"""
OPTIONS = (
    Option(("--help", "-h"), "flag"),
    Option(("--json",), "flag"),
    Option(("--config-dir", "-cd"), metavar="DIR", parse=named),
    Option(("--config-name", "-cn"), metavar="NAME", parse=named),
)
UNKNOWN = "—"
_HARDWARE = ("cores_per_node", "gpus_per_node", "gpu_arch", "mem_per_gpu", "numa_domains")
_PRIVATE = ("queues", "requires", "env", "name", "kind")


def main(argv: Sequence[str], probe: Probe | None = None) -> int:
    """Run ``hpc-hydra systems``; returns the exit code. Raises `HpcHydraError`."""
    name, given = scan_name(OPTIONS, argv, USAGE)
    if "help" in given:
        print(USAGE, end="")
        return 0
    probe = probe or here()
    folders = index.own(probe.env)
    if "config_dir" in given:
        folders = (_config_dir(given["config_dir"], needed="config_name" not in given), *folders)
    selected = _selected(given) if "config_name" in given else None
    as_json = "json" in given
    if name is None:
        data = _overview(probe, folders) | ({"selected": selected} if selected is not None else {})
        _print_json(data) if as_json else _print_overview(data, probe, folders)
        for error in data["broken"]:
            print(f"hpc-hydra systems: {error}", file=sys.stderr)
        return 2 if data["broken"] else 0
    known = index.names(folders)
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        fix = " or ".join(near) if near else "one of `hpc-hydra systems`"
        raise ConfigError(
            f"there is no machine {name!r}",
            where="NAME",
            fix=f"{fix}; --config-dir DIR for your own DIR/system/{name}.yaml",
        )
    _print_json(_machine(name, probe, folders)) if as_json else _print_machine(name, probe, folders)
    return 0


def _selected(given: Mapping[str, Any]) -> str:
    """Return the machine that a configuration selects: ``frontier``, or ``auto``. Raises `ConfigError`."""
    from hpc_hydra.cli import run

    call = run.Call((), (), config_dir=given.get("config_dir"), config_name=given["config_name"])
    with run.translated_errors():
        _, config = run.compose(call, name="systems")
        return str(config.system.name)


def _config_dir(text: str, *, needed: bool) -> Path:
    """Return the directory of a user's configuration, which has ``system/`` if that is ``needed``."""
    folder = Path(text)
    if needed and not folder.joinpath("system").is_dir():
        raise ConfigError("has no directory `system`", where=f"--config-dir {text}", fix="its parent directory")
    return folder.absolute()


def _overview(probe: Probe, folders: index.Folders) -> dict[str, Any]:
    broken = _broken(folders)
    found = detect.machine(probe, without=tuple(broken))
    auto = {"name": "auto", "kind": "auto"}
    taken_as, wrong = None, None
    if found.name is None:
        try:
            taken_as = detect.resolve(from_mapping({"system": auto, "scheduler": auto}), probe=probe)
        except SchedulerError as error:
            wrong = str(error)
    return {
        "this": found.name,
        "taken_as": taken_as and {key: getattr(taken_as.system, key) for key in ("name", "scheduler", *_HARDWARE)},
        "error": wrong,
        "why": [dataclasses.asdict(step) for step in detect.explain(probe)],
        "defaults": str(defaults.path(probe.env)),
        "systems": [_summary(name, folders) for name in index.names(folders) if name not in broken],
        "broken": list(broken.values()),
    }


def _broken(folders: index.Folders) -> dict[str, str]:
    """Return the user's own machines whose files are invalid, with a one-line reason each."""
    found: dict[str, str] = {}
    for name in index.names(folders):
        if _is_own(name, folders):
            try:
                preset_check.system(name, folders)
            except ConfigError as error:
                found[name] = str(error).replace("\n ", ";")
    return found


def _is_own(name: str, folders: index.Folders) -> bool:
    return any((folder / "system" / f"{name}.yaml").exists() for folder in folders)


def _summary(name: str, folders: index.Folders) -> dict[str, Any]:
    system = index.preset(name, folders)
    keys = ("name", "scheduler", *_HARDWARE, "default_queue", "description")
    return {key: getattr(system, key) for key in keys} | {
        "name": name,
        "adapter": _has_adapter(system),
        "own": _is_own(name, folders),
    }


def _has_adapter(system: SystemConfig) -> bool:
    return system.scheduler in shipped("scheduler")


def _machine(name: str, probe: Probe, folders: index.Folders) -> dict[str, Any]:
    system = preset_check.system(name, folders)
    return {
        **{key: value for key, value in dataclasses.asdict(system).items() if key != "kind"},
        "adapter": _has_adapter(system),
        "defaults": _own_defaults(name, probe),
    }


def _own_defaults(name: str, probe: Probe) -> dict[str, Any]:
    """Return the user's defaults for this machine, by key; the machine's section overrides ``*``."""
    done: dict[str, Any] = {}
    for section in (name, defaults.EVERYWHERE):
        for group, values in defaults.sections(probe).get(section, {}).items():
            for key, value in values.items():
                done.setdefault(f"{group}.{key}", value)
    return done


def _print_json(data: Mapping[str, Any]) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


def _print_overview(data: Mapping[str, Any], probe: Probe, folders: index.Folders) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("", "left"), ("system", "left"), ("scheduler", "left"), ("cores", "right"), ("GPUs", "right"),
        ("GPU", "left"), ("GB", "right"), ("default queue", "left"),
    ):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in data["systems"]:
        here_mark = "→" if row["name"] == data["this"] else ""
        scheduler = row["scheduler"] if row["adapter"] else f"{_cell(row['scheduler'])} (no adapter yet)"
        if row["scheduler"] is None:
            scheduler = UNKNOWN
        cells = (row["cores_per_node"], row["gpus_per_node"], row["gpu_arch"], row["mem_per_gpu"], row["default_queue"])
        table.add_row(here_mark, row["name"] + " (yours)" * row["own"], scheduler, *map(_cell, cells))
    streams.show_table(table)
    print()
    print(f"This machine: {data['this'] or 'none of these'}")
    _print_steps(detect.explain(probe))
    if data.get("selected"):
        auto = " (this machine)" * (data["selected"] == "auto")
        print(f"The configuration selects system={data['selected']}{auto}")
    if data["error"]:
        print(data["error"])
    elif data["this"] is None:
        seen = data["taken_as"]
        facts = ", ".join(f"{key.replace('_', ' ')} {_cell(seen[key])}" for key in _HARDWARE)
        print(f"Detected: scheduler {seen['scheduler']}, {facts}")
    _print_defaults_file(probe, folders)
    print(f"\nCores, GPUs and GPU memory (GB) are per node; {UNKNOWN} means unknown.")
    print("`hpc-hydra systems NAME` explains a machine.")


def _print_steps(steps: Iterable[detect.Step]) -> None:
    for step in steps:
        print(f"  {'→' if step.decided else ' '} {step.looked_at}: {step.found}")


def _print_defaults_file(probe: Probe, folders: index.Folders) -> None:
    found = defaults.sections(probe)
    file = defaults.path(probe.env)
    if not found:
        print(f"Your defaults: no file {file}")
        return
    print(f"Your defaults ({file}): {', '.join(found)}")
    unknown = defaults.unknown_sections(probe, (*index.names(folders), *index.NOT_MACHINES, detect.UNKNOWN))
    if unknown:
        words = [name + (f" (did you mean {' or '.join(near)}?)" if near else "") for name, near in unknown.items()]
        print(f"  used only with your own system of that name: {', '.join(words)}")


def _print_machine(name: str, probe: Probe, folders: index.Folders) -> None:
    system = preset_check.system(name, folders)
    print(f"{name}: {system.description}" if system.description else name)
    if system.scheduler is not None and not _has_adapter(system):
        print(f"  Its scheduler ({system.scheduler}) has no adapter yet.")
    print("\nFacts (system.*)")
    facts = {key: value for key, value in dataclasses.asdict(system).items() if key not in (*_PRIVATE, "description")}
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"  {key:<{width}}  {_cell(value)}")
    if system.queues:
        print("\nQueues (scheduler.queue)")
        for queue, profile in system.queues.items():
            mark = " (default)" if queue == system.default_queue else ""
            print(f"  {queue}{mark}: {_queue(profile)}")
    required = {what: entry for what, entry in system.requires.items() if entry not in (None, False)}
    if required:
        print("\nRequired of every job (system.requires)")
    for what, entry in required.items():
        print(f"  {requirements.full_key(what)}")
        _print_reason(entry if isinstance(entry, Mapping) else {})
    print("\nVariables (system.env; overridden by exported variables and launch.env)")
    for variable, preset in system.env.items():
        for one in preset if isinstance(preset, list) else [preset]:
            _print_variable(variable, one)
    if not system.env:
        print("  none")
    own = _own_defaults(name, probe)
    print(f"\nYour defaults ({defaults.path(probe.env)})")
    for key, value in own.items():
        print("  " + masked(f"{key}={_cell(value)}"))
    if not own:
        print("  none")


def _print_variable(name: str, preset: Any) -> None:
    if preset is None:
        print(f"  {name}: removed")
        return
    if not isinstance(preset, Mapping):
        preset = {"value": preset}
    mode = {"prepend": "prepended to the existing value", "force": "overrides exported variables"}.get(
        preset.get("mode", "")
    )
    when = [f"{kind} {argument}" for kind, argument in (preset.get("when") or {}).items()]
    print(f"  {name}={MASK if is_secret(name) else preset.get('value')}{f'   [{mode}]' if mode else ''}")
    if when:
        print(f"      when:    {', '.join(when)}")
    _print_reason(preset)


def _print_reason(about: Mapping[str, Any]) -> None:
    if about.get("why"):
        print(f"      why:     {about['why']}")
    if about.get("source"):
        print(f"      source:  {about['source']}{f' (checked {checked})' if (checked := about.get('checked')) else ''}")


def _queue(profile: QueueConfig) -> str:
    words = []
    for key, value in dataclasses.asdict(profile).items():
        if value is None or value == {}:
            continue
        if key == "time_by_nodes":
            words += [f"{limit} for {nodes} nodes" for nodes, limit in value.items()]
        else:
            words.append(f"{key.replace('_', ' ')} {'left to the scheduler' if value == '' else _cell(value)}")
    return ", ".join(words)


def _cell(value: Any) -> str:
    if value is None or value in ([], {}):
        return UNKNOWN
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(key if inner is None else f"{key}={_cell(inner)}" for key, inner in value.items())
    return str(value)
