"""``hpc-hydra run``: launch any script, module or program through the same path as a Hydra application.

Reads the command line, composes the configuration once, and chooses: attached to this console (one run that is waited
for), or through the sweeper (several runs, or in the background). Must not know: schedulers, scripts, processes.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.cli.scan import Option, UsageError, format_help, named, scan_among
from hpc_hydra.errors import ConfigError, HpcHydraError

if TYPE_CHECKING:
    from omegaconf import DictConfig

OPTIONS = (
    Option(("--help", "-h"), "flag", help="show this help and exit"),
    Option(("--multirun", "-m"), "flag", help="several runs: resources.nodes=1,2,4 is three"),
    Option(
        ("--fill",), "flag", help="fill {key} in the command and in launch.env, from the run's configuration or rank"
    ),
    Option(("--config-dir", "-cd"), metavar="DIR", help="folder of a configuration of your own", parse=named),
    Option(("--config-name", "-cn"), metavar="NAME", help="its name; lists `hpc` in its defaults", parse=named),
)
USAGE = "hpc-hydra run [-m] [overrides] [--fill] -- command [args...]"
ABOUT = """Launch any command: train.py and `-m package.module` are given to Python, anything else is run as it is.
Overrides are Hydra's: system=frontier resources.nodes=2 launch.bg=true. One run that is waited for is attached to the
console and gives its exit code. {rank} {local_rank} {node_rank} {world_size} {num_nodes} {procs_per_node}
{gpus_per_node} {master_addr} {master_port} {seed} are filled on each rank with --fill; {{name}} stays {name}."""
PRIMARY = "hpc_hydra_command"  # the configuration of a command that brings none: the bundle alone


@dataclass(frozen=True)
class Call:
    """One command line of ``hpc-hydra run``."""

    overrides: tuple[str, ...]
    command: tuple[str, ...]
    multirun: bool = False
    fill: bool = False
    config_dir: str | None = None
    config_name: str | None = None


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra run``; returns the exit code. Raises `HpcHydraError`."""
    call = parse(argv)
    if call is None:
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS))
        return 0
    return launch(call)


def parse(argv: Sequence[str]) -> Call | None:
    """Read a command line; None where help is asked for. Raises `UsageError`."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    before, command = words[:at], words[at + 1 :]
    _check_separator(before, command)
    overrides, given = scan_among(OPTIONS, before)
    if "help" in given:
        return None
    if not command and not any(text.startswith("launch.batch_script=") for text in overrides):
        raise UsageError("no command given", where="run", fix=USAGE)
    return Call(tuple(overrides), tuple(command), **{name: given[name] for name in given if name != "help"})


def _check_separator(before: Sequence[str], command: Sequence[str]) -> None:
    """Refuse a command without `--` before it. Raises `UsageError`."""
    takes_value = {flag for option in OPTIONS if option.kind != "flag" for flag in option.flags}
    for at, word in enumerate(before):
        if word.startswith(("-", "~")) or "=" in word or (at and before[at - 1] in takes_value):
            continue
        begin = at - 1 if at and before[at - 1] == "-m" and "." in word and word.replace(".", "").isidentifier() else at
        if begin == at - 1 and Path(word).suffix in (".py", ".sh"):
            begin = at
        rest = [*before[begin:], *(["--", *command] if command else [])]
        line = shlex.join(["hpc-hydra", "run", *before[:begin], "--", *rest])
        raise UsageError(f"{word!r} is no override: there is no -- before the command", where="run", fix=line)


def launch(call: Call) -> int:
    """Compose, then launch; returns the exit code. Raises `HpcHydraError`."""
    from hpc_hydra.cli import attach
    from hpc_hydra.cli.command import program
    from hpc_hydra.records.command_template import of_hydra
    from hpc_hydra.ui.progress import complain

    task = program(call.command, fill=call.fill)
    with explained():
        parsed = _check_overrides(call)
        _check_hydra(parsed)
        hydra, master = compose(call, name=task_name(call))
        if call.fill:
            _check_fill(call, parsed, master)
            _keep_output(call, master)
        elif any(of_hydra(call.command)):
            complain("note: ${hydra:...} in the command is left to the command: --fill before -- fills it")
        if master.rendezvous.get("init") == "launcher" and task.target != "python":
            raise ConfigError(
                "only a Python program can be given its process group",
                where="rendezvous.init",
                fix="rendezvous.init=script, and the command makes it itself",
            )
        if master.launch.best is not None:
            raise ConfigError(
                "a command returns nothing to compare runs by",
                where="launch.best",
                fix="leave it out; a program with @hydra.main returns {loss: ...}, and is started by itself, with -m",
            )
        if master.launch.batch_script is not None and not call.multirun:
            from hpc_hydra.cli import batch

            return batch.launch(hydra.config_loader, master, call.command)
        queued = bool(master.launch.after) or master.launch.snapshot != "none"  # a job waits, and has its own code
        if call.multirun or master.launch.bg or master.launch.setup_only or queued:
            return _sweep(hydra, master, task, call)
        code = attach.launch(hydra.config_loader, master, task)
        return _sweep(hydra, master, task, call) if code is None else code


@contextmanager
def explained() -> Iterator[None]:
    """What Hydra raises, as an error of ours. Raises `ConfigError`."""
    try:
        yield
    except HpcHydraError:
        raise
    except Exception as error:
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        from hpc_hydra.config.hydra_errors import explain

        said = explain(error)
        if said is None and isinstance(error, (HydraException, OmegaConfBaseException)):
            said = ConfigError(_message(error), where="configuration")
        if said is None:
            raise
        raise said from error


def task_name(call: Call) -> str:
    """Name of the command, for directories and logs."""
    scripts = [
        text.partition("=")[2].strip("\"'") for text in call.overrides if text.startswith("launch.batch_script=")
    ]
    words = scripts or [word for word in call.command if not word.startswith("-")] or ["command"]
    return Path(words[0]).name.removesuffix(".py").removesuffix(".sh") or "command"


def compose(call: Call, *, name: str) -> tuple[Any, DictConfig]:
    """Hydra, and the configuration of the whole command line as its multirun composes it."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    from hpc_hydra.hydra_compat import composition

    if call.config_dir and not Path(call.config_dir).is_dir():
        raise ConfigError("there is no such folder", where=f"--config-dir {call.config_dir}")
    store = ConfigStore.instance()
    if f"{PRIMARY}.yaml" not in store.repo:  # again in one process: Hydra 1.5 will refuse a second one
        store.store(name=PRIMARY, node={"defaults": ["hpc", "_self_"]}, provider="hpc_hydra")
    GlobalHydra.instance().clear()
    folder = str(Path(call.config_dir).absolute()) if call.config_dir else None  # ours is found anyway
    hydra = composition.create_hydra(name, folder)
    config_name = call.config_name or ("config" if call.config_dir else PRIMARY)
    overrides = list(call.overrides)
    if not call.multirun:  # one run: its directory is the launch directory itself
        overrides.append("hydra.sweep.subdir=.")
    master = hydra.compose_config(
        config_name=config_name, overrides=overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=True
    )
    if "launch" not in master:
        raise ConfigError(
            "does not have hpc_hydra's groups", where=config_name, fix="defaults: [hpc, _self_] in that file"
        )
    return hydra, master


def _check_overrides(call: Call) -> list[Any]:
    """Parse the overrides; refuse a sweep without -m, and keys that nobody reads. Raises `ConfigError`."""
    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.records.frozen_config import parse_overrides
    from hpc_hydra.suggest import quoted

    parsed = parse_overrides(call.overrides)
    for one in parsed:
        if one.is_sweep_override() and not call.multirun:
            line = str(one.input_line)
            key, _, value = line.partition("=")
            fix = f"hpc-hydra run -m {shlex.quote(line)}"
            if re.fullmatch(r"[^'\"()\[\]{}]+", value):
                one = f"{key}='{value}'"
                fix += f"; for one value {quoted(one)}"
            raise ConfigError("several values need -m", where=line, fix=fix)
        first = one.key_or_group.split(".")[0].split("@")[0].split("/")[0]
        if first in GROUPS or first == "hydra" or call.config_dir or call.config_name:
            continue
        if not call.fill or not (one.is_add() or one.is_force_add()):
            raise _nobody_reads(one.key_or_group, fill=call.fill)
    return parsed


def _check_fill(call: Call, parsed: Sequence[Any], master: DictConfig) -> None:
    """Refuse ``{key}`` that nobody fills or two could fill, and a sweep that the command does not see."""
    from omegaconf import OmegaConf

    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.launcher.checks import check_of_hydra
    from hpc_hydra.records.command_template import RANK_KEYS, names, of_hydra, unknown

    env = master.launch.env
    wanted = list(names([*call.command, *(map(str, env.values()) if OmegaConf.is_dict(env) else ())]))
    added = {one.key_or_group for one in parsed}
    for name in dict.fromkeys([*wanted, *(f"hydra.{key}" for key in of_hydra(str(o.input_line) for o in parsed))]):
        if name.startswith("hydra."):
            check_of_hydra(name, master)
            continue
        in_config = name in added or OmegaConf.select(master, name, default=None) is not None
        if name in RANK_KEYS and name != "seed" and in_config:
            raise ConfigError(
                f"{{{name}}} is filled by each rank, and is a key of the configuration too",
                where=name,
                fix=f"another name for the key: +my.{name}=VALUE and {{my.{name}}}",
            )
        if name not in RANK_KEYS and not in_config:
            raise unknown(name)
    if call.config_dir or call.config_name:  # there, any key may decide what another one is
        return
    swept = [one.key_or_group for one in parsed if one.is_sweep_override()]
    unused = [key for key in swept if key.split(".")[0] not in GROUPS and not _asked_for(key, wanted)]
    if unused:
        raise ConfigError(
            "is swept, but nothing in the command asks for it: all runs would be the same",
            where=unused[0],
            fix=f"{{{unused[0]}}} in the command",
        )


def _check_hydra(parsed: Sequence[Any]) -> None:
    """Refuse ``${hydra:key}`` in our own keys, which are read before there is a run. Raises `ConfigError`."""
    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.records.command_template import of_hydra

    for one in parsed:
        key, line = one.key_or_group, str(one.input_line)
        found = next(of_hydra([line]), None)
        if found is None or key.split(".")[0] not in GROUPS:
            continue
        raise ConfigError(
            f"${{hydra:{found}}} is not known before the run starts",
            where=key,
            fix=f"--fill {key}=\"'{{hydra.{found}}}'\"" if key.startswith("launch.env.") else "give the value itself",
        )


def _keep_output(call: Call, master: DictConfig) -> None:
    """A command that is told a directory of its run needs one that stays."""
    from omegaconf import open_dict, read_write

    from hpc_hydra.records.command_template import names, of_hydra

    asked = {*names(call.command), *(f"hydra.{key}" for key in of_hydra(call.overrides))}
    if master.launch.launch_dir is None and asked & {"hydra.runtime.output_dir", "hydra.sweep.dir"}:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = "true"  # named by command and time


def _asked_for(key: str, wanted: Sequence[str]) -> bool:
    """Whether a swept key, something in it, or something that it is in, is filled in somewhere."""
    return any(name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.") for name in wanted)


def _nobody_reads(key: str, *, fill: bool) -> ConfigError:
    from hpc_hydra.config.schema import GROUPS

    known = {f"{group}.{field.name}": field.name for group, kind in GROUPS.items() for field in fields(kind)}
    near = [full for full, short in known.items() if short == key]
    import difflib

    near += difflib.get_close_matches(key, [*known, *GROUPS], n=2)
    hint = f"{'' if fill else '--fill '}+{key}=VALUE, with {{{key}}} in the command"
    return ConfigError(
        "no key of the configuration; the command itself does not read it",
        where=key,
        fix=f"{' or '.join(dict.fromkeys(near))}; or {hint}" if near else hint,
    )


def _sweep(hydra: Any, master: DictConfig, task: Any, call: Call) -> int:
    """What Hydra's multirun does with a composed configuration."""
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext
    from omegaconf import OmegaConf, open_dict, read_write

    from hpc_hydra.hydra_compat import composition
    from hpc_hydra.hydra_compat.command_line import declare

    if not call.multirun and master.launch.launch_dir is None:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = "true"  # a new directory, named by command and time
    callbacks = composition.callbacks(master)
    callbacks.on_multirun_start(config=master, config_name=master.hydra.job.config_name)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
    with declare(task):
        sweeper = Plugins.instance().instantiate_sweeper(
            config=master, hydra_context=context, task_function=_no_function
        )
        overrides = OmegaConf.to_container(master.hydra.overrides.task, resolve=False)
        assert isinstance(overrides, list)
        try:
            sweeper.sweep(arguments=overrides)
        except SystemExit as leaving:
            return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    callbacks.on_multirun_end(config=master, config_name=master.hydra.job.config_name)
    return 0


def _no_function(_: Any) -> None:
    raise HpcHydraError("a command has no task function")


def _message(error: Exception) -> str:
    """Hydra's words in one line, without its search path; its cause where that says more."""
    text = str(error).partition("Config search path:")[0]
    cause = (str(error.__cause__ or "").strip().splitlines() or [""])[0]
    if cause and cause not in text:
        text += f" ({cause})"
    return " ".join(text.split())
