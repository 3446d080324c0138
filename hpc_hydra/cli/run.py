"""``hpc-hydra run``: launch any script, module or program in the same way as a Hydra application.

Parses the command line, composes the configuration once, and runs either attached to this console (one run that is
waited for) or through the sweeper (several runs, or in the background). Must not know: schedulers, scripts, processes.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.cli.scan import Option, UsageError, format_help, named, scan_among
from hpc_hydra.errors import ConfigError, HpcHydraError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG = (
    Option(("--config-dir", "-cd"), metavar="DIR", help="directory of your own configuration", parse=named),
    Option(
        ("--config-name", "-cn"),
        metavar="NAME",
        help="name of a configuration whose defaults list has `hpc`",
        parse=named,
    ),
)
OPTIONS = (
    Option(("--help", "-h"), "flag", help="show this help"),
    Option(("--multirun", "-m"), "flag", help="sweep: resources.nodes=1,2,4 makes three runs"),
    Option(("--fill",), "flag", help="replace {key} in the command and in launch.env with values of the run or rank"),
    *CONFIG,
)
USAGE = "hpc-hydra run [-m] [overrides] [--fill] -- command [args...]"
EXAMPLE = "hpc-hydra run -m resources.nodes=1,2 -- train.py --lr 0.1"
ABOUT = """Launch any command: train.py and `-m package.module` run in Python, anything else is executed directly.
Overrides are Hydra's: system=frontier resources.nodes=2 launch.bg=true. A single run that is waited for is attached to
the console and returns its exit code; with launch.after or launch.snapshot it is a job of its own: 0 if it completed,
else 1. With --fill each rank replaces {rank} {local_rank} {node_rank} {world_size}
{num_nodes} {procs_per_node} {gpus_per_node} {master_addr} {master_port} {seed} {output_dir} {sweep_dir} {num}
{job_id}; {{name}} becomes {name}."""
PRIMARY = "hpc_hydra_command"  # name of the default configuration, which has only the bundle


@dataclass(frozen=True)
class Call:
    """A parsed command line of ``hpc-hydra run``."""

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
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS, f"example: {EXAMPLE}"))
        return 0
    return launch(call)


def parse(argv: Sequence[str]) -> Call | None:
    """Parse a command line; return None if it asks for help. Raises `UsageError`."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    before, command = words[:at], words[at + 1 :]
    if before[:1] in (["-h"], ["--help"]):
        return None
    _check_separator(before, command)
    overrides, given = scan_among(OPTIONS, before)
    if "help" in given:
        return None
    if not command and not any(text.startswith("launch.batch_script=") for text in overrides):
        raise UsageError("no command given", where="run", fix=EXAMPLE)
    return Call(tuple(overrides), tuple(command), **{name: given[name] for name in given if name != "help"})


def _check_separator(before: Sequence[str], command: Sequence[str]) -> None:
    """Refuse a command without `--` before it. Raises `UsageError`."""
    takes_value = {flag for option in OPTIONS if option.kind != "flag" for flag in option.flags}
    known = {flag for option in OPTIONS for flag in option.flags}
    for at, word in enumerate(before):
        if word.startswith("-") and word.partition("=")[0] not in known:
            return  # `scan_among` refuses it
        if word.startswith(("-", "~")) or "=" in word or (at and before[at - 1] in takes_value):
            continue
        begin = at - 1 if at and before[at - 1] == "-m" and "." in word and word.replace(".", "").isidentifier() else at
        if begin == at - 1 and Path(word).suffix in (".py", ".sh"):
            begin = at
        if begin == at and (fix := _meant(before, at, command)) is not None:
            raise UsageError(f"{word!r} is not an override", where="run", fix=fix)
        rest = [*before[begin:], *(["--", *command] if command else [])]
        line = shlex.join(["hpc-hydra", "run", *before[:begin], "--", *rest])
        raise UsageError(f"{word!r} is not an override: there is no -- before the command", where="run", fix=line)


def _meant(before: Sequence[str], at: int, command: Sequence[str]) -> str | None:
    """Return the override that the word at ``at`` is a part of; None if the word rather begins the command."""
    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.config.store import shipped
    from hpc_hydra.suggest import in_quotes, quoted

    word, behind = before[at], before[at + 1 :]
    if Path(word).suffix in (".py", ".sh"):
        return None
    plain = list(takewhile(lambda one: "=" not in one and not one.startswith(("-", "~", "+")), behind))
    if word.partition(".")[0] in GROUPS:
        if behind[:1] == ["="]:
            plain = list(behind[1:2])
        return shlex.quote(f"{word}={plain[0] if plain else 'VALUE'}")
    if not command or (_is_program(word) and not _is_program(command[0])):
        return None
    if of := [group for group in GROUPS if word in shipped(group)]:
        return " or ".join(f"{group}={word}" for group in of)
    key, equals, value = before[at - 1].partition("=") if at else ("", "", "")
    if not equals or key.startswith("-"):
        return "KEY=VALUE, or leave it out"
    value = " ".join([value, word, *plain]).strip()
    if " " not in value:
        return shlex.quote(f"{key}={value}")
    return quoted(f"{key}={value if value[0] in '[{' else in_quotes(value)}")


def _is_program(word: str) -> bool:
    import shutil

    return word == "-m" or word.endswith((".py", ".sh")) or Path(word).is_file() or shutil.which(word) is not None


def launch(call: Call) -> int:
    """Compose, then launch; returns the exit code. Raises `HpcHydraError`."""
    from hpc_hydra.cli import attach
    from hpc_hydra.cli.command import program
    from hpc_hydra.records.command_template import of_hydra
    from hpc_hydra.ui.progress import complain

    task = program(call.command, fill=call.fill)
    with translated_errors():
        parsed = _check_overrides(call)
        _check_hydra(parsed)
        hydra, master = compose(call, name=task_name(call))
        if call.fill:
            _check_fill(call, parsed, master)
            _keep_output(call, master)
        elif any(of_hydra(call.command)):
            complain("note: ${hydra:...} in the command is not replaced; --fill before -- replaces it")
        if master.rendezvous.get("init") == "launcher" and task.target != "python":
            raise ConfigError(
                "only a Python program can get its process group from the launcher",
                where="rendezvous.init",
                fix="rendezvous.init=script, and create it in the command",
            )
        if master.launch.batch_script is not None and not call.multirun:
            from hpc_hydra.cli import batch

            return batch.launch(hydra.config_loader, master, call.command)
        if call.multirun or attach.is_submitted(master.launch):
            return _sweep(hydra, master, task, call)
        code = attach.launch(hydra.config_loader, master, task)
        return _sweep(hydra, master, task, call) if code is None else code


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise `ConfigError` for exceptions of Hydra and OmegaConf."""
    try:
        yield
    except HpcHydraError:
        raise
    except Exception as error:
        from hydra.errors import HydraException, OverrideParseException
        from omegaconf.errors import OmegaConfBaseException

        from hpc_hydra.config.hydra_errors import explain, unparsed

        explained = explain(error)
        if explained is None and isinstance(error, OverrideParseException):
            explained = unparsed(str(error.override), str(error))
        if explained is None and isinstance(error, (HydraException, OmegaConfBaseException)):
            explained = ConfigError(_message(error), where="configuration")
        if explained is None:
            raise
        raise explained from error


def task_name(call: Call) -> str:
    """Return the name of the command, for directories and logs."""
    scripts = [
        text.partition("=")[2].strip("\"'") for text in call.overrides if text.startswith("launch.batch_script=")
    ]
    words = scripts or [word for word in call.command if not word.startswith("-")] or ["command"]
    return Path(words[0]).name.removesuffix(".py").removesuffix(".sh") or "command"


def compose(call: Call, *, name: str) -> tuple[Any, DictConfig]:
    """Return Hydra, and the configuration of the command line as Hydra composes it for a multirun."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    from hpc_hydra.hydra_compat import composition

    if call.config_dir and not Path(call.config_dir).is_dir():
        raise ConfigError("there is no such directory", where=f"--config-dir {call.config_dir}")
    store = ConfigStore.instance()
    if f"{PRIMARY}.yaml" not in store.repo:  # Hydra 1.5 refuses to store a name twice
        store.store(name=PRIMARY, node={"defaults": ["hpc", "_self_"]}, provider="hpc_hydra")
    GlobalHydra.instance().clear()
    composition.use_current_defaults()
    folder = str(Path(call.config_dir).absolute()) if call.config_dir else None  # hpc_hydra's is found without it
    hydra = composition.create_hydra(name, folder)
    config_name = _config_name(call)
    overrides = list(call.overrides)
    if not call.multirun:  # the launch directory is the directory of the single run
        overrides.append("hydra.sweep.subdir=.")
    master = hydra.compose_config(
        config_name=config_name, overrides=overrides, run_mode=RunMode.MULTIRUN, with_log_configuration=True
    )
    if "launch" not in master:
        raise ConfigError(
            "does not have hpc_hydra's groups", where=config_name, fix="defaults: [hpc, _self_] in that file"
        )
    return hydra, master


def _config_name(call: Call) -> str:
    """Return the name of the primary configuration: by default config.yaml of --config-dir, else the bundle alone.

    Raises `ConfigError` if there is none of that name.
    """
    from hpc_hydra.config.store import conf_dir
    from hpc_hydra.suggest import nearest

    folder = Path(call.config_dir) if call.config_dir else None
    there = sorted(path.stem for path in folder.glob("*.yaml")) if folder is not None else []
    wanted = call.config_name or ("config" if there else PRIMARY)
    stem = wanted.removesuffix(".yaml")
    if folder is None and wanted != PRIMARY and not (conf_dir() / f"{stem}.yaml").is_file():
        raise ConfigError(
            "there is no such configuration", where=f"--config-name {wanted}", fix="--config-dir DIR, its directory"
        )
    known = stem in (*there, PRIMARY, "hpc") or "/" in stem
    if folder is not None and not known:
        what = "has no config.yaml" if call.config_name is None else f"has no {stem}.yaml"
        names = " or ".join(f"--config-name {name}" for name in nearest(stem, there) or there)
        raise ConfigError(what, where=f"--config-dir {call.config_dir}", fix=names or None)
    return wanted


def _check_overrides(call: Call) -> list[Any]:
    """Parse the overrides; refuse a sweep without -m, and unused keys. Raises `ConfigError`."""
    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.records.frozen_config import parse_overrides
    from hpc_hydra.suggest import quoted

    parsed = parse_overrides(call.overrides)
    for one in parsed:
        if not one.key_or_group:
            raise ConfigError(f"{str(one.input_line)!r} has no key", where="run", fix="KEY=VALUE, or leave it out")
        if one.is_sweep_override() and not call.multirun:
            line = str(one.input_line)
            key, _, value = line.partition("=")
            fix = f"hpc-hydra run -m {shlex.quote(line)}"
            if re.fullmatch(r"[^'\"()\[\]{}]+", value):
                one = f"{key}='{value}'"
                fix += f"; for a single value {quoted(one)}"
            raise ConfigError("several values require -m", where=line, fix=fix)
        first = one.key_or_group.split(".")[0].split("@")[0].split("/")[0]
        if first in GROUPS or first == "hydra" or call.config_dir or call.config_name:
            continue
        if not call.fill or not (one.is_add() or one.is_force_add()):
            raise _unused_key(one, call)
    return parsed


def _check_fill(call: Call, parsed: Sequence[Any], master: DictConfig) -> None:
    """Refuse unknown or ambiguous ``{key}`` in the command, and swept keys that the command does not use."""
    from omegaconf import OmegaConf

    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.launcher.checks import check_of_hydra
    from hpc_hydra.records.command_template import RANK_KEYS, YIELDING, names, of_hydra, unknown

    env = master.launch.env
    wanted = list(names([*call.command, *(map(str, env.values()) if OmegaConf.is_dict(env) else ())]))
    added = {one.key_or_group for one in parsed}
    for name in dict.fromkeys([*wanted, *(f"hydra.{key}" for key in of_hydra(str(o.input_line) for o in parsed))]):
        if name.startswith("hydra."):
            check_of_hydra(name, master)
            continue
        in_config = name in added or OmegaConf.select(master, name, default=None) is not None
        if name in RANK_KEYS and name not in YIELDING and in_config:
            raise ConfigError(
                f"{{{name}}} is set by each rank and is also a key of the configuration",
                where=name,
                fix=f"another name for the key: +my.{name}=VALUE and {{my.{name}}}",
            )
        if name not in RANK_KEYS and not in_config:
            raise unknown(name)
    if call.config_dir or call.config_name:  # keys of a configuration may depend on each other
        return
    swept = [one.key_or_group for one in parsed if one.is_sweep_override()]
    unused = [key for key in swept if key.split(".")[0] not in GROUPS and not _is_used(key, wanted)]
    if unused:
        raise ConfigError(
            "is swept but not used in the command: all runs would be the same",
            where=unused[0],
            fix=f"{{{unused[0]}}} in the command",
        )


def _check_hydra(parsed: Sequence[Any]) -> None:
    """Refuse ``${hydra:key}`` in keys that are read before the run starts. Raises `ConfigError`."""
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
            fix=f"--fill {key}=\"'{{hydra.{found}}}'\"" if key.startswith("launch.env.") else "the value itself",
        )


def _keep_output(call: Call, master: DictConfig) -> None:
    """Keep the launch directory of a single run if the command uses it. That of a sweep is kept anyway."""
    from omegaconf import open_dict, read_write

    from hpc_hydra.records.command_template import DIRECTORIES, names, of_hydra

    if call.multirun:
        return
    asked = {*names(call.command), *(f"hydra.{key}" for key in of_hydra(call.overrides))}
    if master.launch.launch_dir is None and asked & {"hydra.runtime.output_dir", "hydra.sweep.dir", *DIRECTORIES}:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = "true"  # a new directory, named after command and time


def _is_used(key: str, wanted: Sequence[str]) -> bool:
    """Whether a swept key, one of its children or one of its parents is used in the command."""
    return any(name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.") for name in wanted)


def _unused_key(one: Any, call: Call) -> ConfigError:
    """Return the error for an override of a key that is not of our groups, nor added with ``+`` for ``--fill``."""
    from hpc_hydra.config.schema import GROUPS
    from hpc_hydra.records.command_template import names

    key = one.key_or_group
    known = {f"{group}.{field.name}": field.name for group, kind in GROUPS.items() for field in fields(kind)}
    near = [full for full, short in known.items() if short == key]
    import difflib

    near += difflib.get_close_matches(key, [*known, *GROUPS], n=2)
    fill = "" if call.fill else "--fill "
    if _is_used(key, list(names(call.command))):
        typed = f"+{str(one.input_line).lstrip('+')}"
        what = f"the command uses {{{key}}}, which " + (
            "--fill replaces" if fill else "has to be added to the configuration with +"
        )
        return ConfigError(what, where=key, fix=f"{fill}{shlex.quote(typed)}")
    hint = f"{fill}+{key}=VALUE, with {{{key}}} in the command"
    return ConfigError(
        "this is not a key of the configuration, and the command does not use it",
        where=key,
        fix=f"{' or '.join(dict.fromkeys(near))}; or {hint}" if near else hint,
    )


def _sweep(hydra: Any, master: DictConfig, task: Any, call: Call) -> int:
    """Run the sweeper on a composed configuration, as Hydra's multirun does."""
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext
    from omegaconf import OmegaConf, open_dict, read_write

    from hpc_hydra.cli.attach import check_script
    from hpc_hydra.hydra_compat import composition
    from hpc_hydra.hydra_compat.command_line import declare

    check_script(task, master)
    if not call.multirun and master.launch.launch_dir is None:
        with read_write(master), open_dict(master):
            master.launch.launch_dir = "true"  # a new directory, named after command and time
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


def _no_function(_: Any) -> Any:
    """Stand for the command, whose result is not known before it has run."""
    return _fail()


def _fail() -> None:
    raise HpcHydraError("a command has no task function")


def _message(error: Exception) -> str:
    """Return Hydra's message in one line, without its search path, with its cause if that adds information."""
    text = str(error).partition("Config search path:")[0]
    cause = (str(error.__cause__ or "").strip().splitlines() or [""])[0]
    if cause and cause not in text:
        text += f" ({cause})"
    return " ".join(text.split())
