"""``hpc-hydra systems``: the machines that are known, which one this is and why, and each variable of one.

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

from hpc_hydra.cli.scan import Option, UsageError, named, scan_among
from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import QueueConfig, SystemConfig
from hpc_hydra.config.secrets import MASK, is_secret, masked
from hpc_hydra.config.store import shipped
from hpc_hydra.errors import ConfigError, SchedulerError
from hpc_hydra.system import defaults, detect, index, preset_check
from hpc_hydra.system.probe import Probe, here
from hpc_hydra.ui import streams

USAGE = """usage: hpc-hydra systems [NAME] [--config-dir DIR] [--json]

Without NAME: the machines that are known, which one this is, and why.
With NAME:    its facts, queues and limits, each variable with its reason, and your own defaults for it.

  --config-dir, -cd DIR  folder of a configuration of your own: machines of DIR/system are known too,
                         as are those of ~/.config/hpc_hydra/system
  --json                 the same as JSON
  -h, --help             this text
"""
OPTIONS = (
    Option(("--help", "-h"), "flag"),
    Option(("--json",), "flag"),
    Option(("--config-dir", "-cd"), metavar="DIR", parse=named),
)
NOT_KNOWN = "—"
_HARDWARE = ("cores_per_node", "gpus_per_node", "gpu_arch", "mem_per_gpu", "numa_domains")
_PRIVATE = ("queues", "env", "name", "kind")


def main(argv: Sequence[str], probe: Probe | None = None) -> int:
    """Entry point. Returns the exit code."""
    names, given = scan_among(OPTIONS, argv)
    if "help" in given:
        print(USAGE, end="")
        return 0
    if len(names) > 1:
        raise UsageError(f"{names[1]!r} is one name too many", fix=USAGE.partition("\n")[0])
    probe = probe or here()
    folders = index.own(probe.env)
    if "config_dir" in given:
        folders = (_config_dir(given["config_dir"]), *folders)
    as_json = "json" in given
    if not names:
        data = _overview(probe, folders)
        _print_json(data) if as_json else _print_overview(data, probe, folders)
        for error in data["broken"]:
            print(f"hpc-hydra systems: {error}", file=sys.stderr)
        return 2 if data["broken"] else 0
    name = names[0]
    known = index.names(folders)
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        fix = " or ".join(near) if near else "one of `hpc-hydra systems`"
        raise ConfigError(
            f"there is no machine {name!r}",
            where="NAME",
            fix=f"{fix}; one of your own, DIR/system/{name}.yaml, is known with --config-dir DIR",
        )
    _print_json(_machine(name, probe, folders)) if as_json else _print_machine(name, probe, folders)
    return 0


def _config_dir(text: str) -> Path:
    folder = Path(text)
    if not folder.joinpath("system").is_dir():
        raise ConfigError("there is no folder `system` in it", where=f"--config-dir {text}", fix="the folder above it")
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
    """Machines of a person's own whose files a launch could not use, and why, in one line each."""
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
    """What the person's file says for this machine: key → value, the machine's own section first."""
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
            scheduler = NOT_KNOWN
        cells = (row["cores_per_node"], row["gpus_per_node"], row["gpu_arch"], row["mem_per_gpu"], row["default_queue"])
        table.add_row(here_mark, row["name"] + " (yours)" * row["own"], scheduler, *map(_cell, cells))
    _show(table)
    print()
    print(f"This machine: {data['this'] or 'none of these'}")
    _print_steps(detect.explain(probe))
    if data["error"]:
        print(data["error"])
    elif data["this"] is None:
        seen = data["taken_as"]
        facts = ", ".join(f"{key.replace('_', ' ')} {_cell(seen[key])}" for key in _HARDWARE)
        print(f"It is taken as: scheduler {seen['scheduler']}, {facts}")
    _print_defaults_file(probe, folders)
    print(f"\nCores, GPUs and GB of GPU memory are for one node; {NOT_KNOWN} is not known.")
    print("`hpc-hydra systems NAME` explains one.")


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
    strange = defaults.strange(probe, (*index.names(folders), *index.NOT_MACHINES, detect.UNKNOWN))
    if strange:
        words = [name + (f" (did you mean {' or '.join(near)}?)" if near else "") for name, near in strange.items()]
        print(f"  used only with a system of your own of that name: {', '.join(words)}")


_WIDEST = 200  # columns


def _show(table: Any) -> None:
    """Print a table as wide as it needs: in a pipe, cells must not be cut to a width that nobody has."""
    console = streams.console(highlight=False)
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    if not console.is_terminal or needed > console.width:  # the terminal breaks lines
        console = streams.console(highlight=False, width=_WIDEST)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def _print_machine(name: str, probe: Probe, folders: index.Folders) -> None:
    system = preset_check.system(name, folders)
    print(f"{name}: {system.description or ''}")
    if system.scheduler is not None and not _has_adapter(system):
        print(f"  There is no adapter for its scheduler ({system.scheduler}) yet.")
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
    print("\nVariables (system.env; what you export, and launch.env, win)")
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
        print(f"  {name}: taken away")
        return
    if not isinstance(preset, Mapping):
        preset = {"value": preset}
    mode = {"prepend": "put before what is there", "force": "even over what you export"}.get(preset.get("mode", ""))
    when = [f"{kind} {argument}" for kind, argument in (preset.get("when") or {}).items()]
    print(f"  {name}={MASK if is_secret(name) else preset.get('value')}{f'   [{mode}]' if mode else ''}")
    if when:
        print(f"      when:    {', '.join(when)}")
    print(f"      why:     {preset.get('why') or NOT_KNOWN}")
    print(f"      source:  {preset.get('source') or NOT_KNOWN} (checked {preset.get('checked') or NOT_KNOWN})")


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
        return NOT_KNOWN
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(key if inner is None else f"{key}={_cell(inner)}" for key, inner in value.items())
    return str(value)
