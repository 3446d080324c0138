"""``hpc-hydra <command>``: dispatch to the command, and turn errors into a message and an exit code.

Imports the command's module only when it is run, so that help is instant.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hpc_hydra.errors import NO_DIRECTORY, HpcHydraError
from hpc_hydra.ui import streams

COMMANDS = {
    "run": ("hpc_hydra.cli.run", "launch any script, module or program; with -m a sweep"),
    "torchrun": ("hpc_hydra.cli.torchrun", "launch a script with torchrun-hpc's options"),
    "list": ("hpc_hydra.cli.list_sweeps", "list your sweeps, the newest first, with the states of their runs"),
    "status": ("hpc_hydra.cli.sweep_commands:status", "show the runs of a sweep: states, jobs, reasons"),
    "logs": ("hpc_hydra.cli.sweep_commands:logs", "show the output of a run, or of one of its ranks"),
    "stacks": ("hpc_hydra.cli.stacks:stacks", "show what the ranks of a running run are doing, by their Python stacks"),
    "wait": ("hpc_hydra.cli.sweep_commands:wait", "wait until all runs have ended"),
    "cancel": ("hpc_hydra.cli.sweep_commands:cancel", "cancel pending and running runs"),
    "checkpoint": ("hpc_hydra.cli.checkpoint", "ask running runs to save and go on, or to save and end"),
    "resume": ("hpc_hydra.cli.sweep_commands:resume", "resubmit runs that failed, were lost, or were never submitted"),
    "results": ("hpc_hydra.cli.sweep_commands:results", "show returned values as a table, CSV or JSON"),
    "log": ("hpc_hydra.cli.log", "record metrics of a run, from a script that it has started"),
    "doctor": ("hpc_hydra.cli.doctor", "check ranks, network, GPUs, files and all-reduce with a small job"),
    "report": ("hpc_hydra.cli.html_report:report", "write a sweep as one HTML file, or serve it while it runs"),
    "shell": ("hpc_hydra.cli.shell", "open a shell in an allocation, with the environment of the ranks"),
    "systems": ("hpc_hydra.cli.systems", "list the known machines, and which one this is"),
    "nodes": ("hpc_hydra.cli.nodes", "list the nodes that failed your runs, which new jobs leave out"),
    "completion": ("hpc_hydra.cli.completion", "print the script that completes hpc-hydra in bash, zsh or fish"),
    "keys": ("hpc_hydra.cli.keys", "explain the configuration keys, and what they become on each scheduler"),
}
USAGE_EXIT = 2
_TAKE_EMPTY = ("run", "torchrun", "completion")  # with arguments of the user's command, or a word that is begun


def usage() -> str:
    """Return the help text of ``hpc-hydra``."""
    lines = [
        "usage: hpc-hydra <command> [options]",
        "",
        "Launch distributed PyTorch on HPC machines from a Hydra configuration.",
        "",
        "commands:",
        *(f"  {name:<12}{about}" for name, (_, about) in COMMANDS.items()),
        "",
        "`hpc-hydra <command> --help` explains a command. `hpc-hydra --version` prints the version.",
    ]
    return "\n".join(lines) + "\n"


def version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("hpc-hydra")
    except PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 0, 1 (a run failed), 2 (wrong usage), 130 (interrupted), or a program's."""
    streams.begin_command()
    try:
        code = _main(argv)
    except BrokenPipeError:  # the reader closed the pipe, as in `| head`
        streams.leave(1)
        code = 141
    except OSError as error:
        if not streams.note(error):
            raise
        code = 1
    return streams.ended(code)


def _main(argv: Sequence[str] | None) -> int:
    if argv is None:
        atexit.register(gc.freeze)  # skips the collection of cycles at exit
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        if not words:
            _complain(usage().rstrip("\n"))
            return USAGE_EXIT
        print(usage(), end="", flush=True)
        return 0
    name, rest = words[0], words[1:]
    if name in ("--version", "-V"):
        print(f"hpc-hydra {version()}", flush=True)
        return 0
    if name not in COMMANDS:
        from hpc_hydra.suggest import nearest

        near = " or ".join(f"hpc-hydra {one}" for one in nearest(name, COMMANDS))
        fix = near or f"hpc-hydra COMMAND; commands are {', '.join(COMMANDS)}"
        _complain(f"hpc-hydra: unknown command {name!r}\n  Try: {fix}")
        return USAGE_EXIT
    if "" in rest and name not in _TAKE_EMPTY:
        _complain(
            f"hpc-hydra {name}: an argument is empty\n  Try: leave it out, or set the variable that it comes from"
        )
        return USAGE_EXIT
    gc.set_threshold(100_000, 20, 20)  # most objects made at startup stay; scanning them takes a tenth of its time
    try:
        module, _, function = COMMANDS[name][0].partition(":")
        return int(getattr(import_module(module), function or "main")(rest))
    except HpcHydraError as error:
        text = str(error)
        _complain(f"hpc-hydra {name}: {text.removeprefix(f'{name}: ')}")
        return error.exit_code
    except OSError as error:
        try:
            Path.cwd()
        except FileNotFoundError:
            _complain(f"hpc-hydra {name}: {NO_DIRECTORY}")
            return NO_DIRECTORY.exit_code
        place = error.filename2 or error.filename
        if place is None:
            raise
        _complain(f"hpc-hydra {name}: {os.fsdecode(place)}: {error.strerror}")
        return USAGE_EXIT
    except KeyboardInterrupt:
        return 130


def _complain(text: str) -> None:
    with streams.spoken():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
