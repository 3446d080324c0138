"""``hpc-hydra <command>``: finds the command, runs it, turns errors into one message and an exit code.

Nothing is imported before the command is known: help is instant.
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
    "run": ("hpc_hydra.cli.run", "launch any script, module or program; -m sweeps"),
    "torchrun": ("hpc_hydra.cli.torchrun", "the same with torchrun-hpc's options"),
    "status": ("hpc_hydra.cli.sweep_commands:status", "the runs of a sweep: states, jobs, reasons"),
    "logs": ("hpc_hydra.cli.sweep_commands:logs", "the output of a run, or of one of its ranks"),
    "wait": ("hpc_hydra.cli.sweep_commands:wait", "wait until all runs have ended"),
    "cancel": ("hpc_hydra.cli.sweep_commands:cancel", "end runs that wait or run"),
    "resume": ("hpc_hydra.cli.sweep_commands:resume", "submit again what failed, was lost, or never was submitted"),
    "results": ("hpc_hydra.cli.sweep_commands:results", "what the runs returned, as a table, CSV or JSON"),
    "doctor": ("hpc_hydra.cli.doctor", "a small job that checks ranks, network, GPUs, files and all-reduce"),
    "report": ("hpc_hydra.cli.html_report:report", "the sweep as one HTML file: table, plots, timeline, failures"),
    "shell": ("hpc_hydra.cli.shell", "a shell in an allocation, with the environment of the ranks"),
    "systems": ("hpc_hydra.cli.systems", "the machines that are known, and which one this is"),
}
USAGE_EXIT = 2


def usage() -> str:
    """Help of the program as a whole."""
    lines = [
        "usage: hpc-hydra <command> [options]",
        "",
        "Launch distributed PyTorch on HPC machines from a Hydra configuration.",
        "",
        "commands:",
        *(f"  {name:<12}{about}" for name, (_, about) in COMMANDS.items()),
        "",
        "`hpc-hydra <command> --help` explains one. `hpc-hydra --version` tells the version.",
    ]
    return "\n".join(lines) + "\n"


def version() -> str:
    """The version of this package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("hpc-hydra")
    except PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0, 1 (a run failed), 2 (wrong usage), 130 (interrupted), or the command's."""
    streams.begin_command()
    try:
        code = _main(argv)
    except BrokenPipeError:  # the reader has left, as a shell's `| head` does
        streams.leave(1)
        code = 141
    except OSError as error:
        if not streams.note(error):
            raise
        code = 1
    return streams.ended(code)


def _main(argv: Sequence[str] | None) -> int:
    if argv is None:
        atexit.register(gc.freeze)  # what is there goes with the process: its end does not look for cycles in it
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
        from hpc_hydra.cli.scan import did_you_mean

        near = did_you_mean(name, COMMANDS)
        hint = f"did you mean {near}?" if near else f"commands are {', '.join(COMMANDS)}"
        _complain(f"hpc-hydra: unknown command {name!r}; {hint}")
        return USAGE_EXIT
    gc.set_threshold(
        100_000, 20, 20
    )  # a start makes much that stays; looking for cycles in it takes a tenth of its time
    try:
        module, _, function = COMMANDS[name][0].partition(":")
        return int(getattr(import_module(module), function or "main")(rest))
    except HpcHydraError as error:
        _complain(f"hpc-hydra {name}: {error}")
        return error.exit_code
    except FileNotFoundError:
        try:
            Path.cwd()
        except FileNotFoundError:
            _complain(f"hpc-hydra {name}: {NO_DIRECTORY}")
            return NO_DIRECTORY.exit_code
        raise
    except PermissionError as error:
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
