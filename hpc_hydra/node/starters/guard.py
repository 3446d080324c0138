"""Runs a scheduler's launch command and ends it after a rank has failed, if it does not end by itself.

    python -m hpc_hydra.node guard -- jsrun … command args…

Signals are forwarded to it. Must not know: what the command does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hpc_hydra.node.starters.mpiexec import wait
from hpc_hydra.processes import Signals, start_program
from hpc_hydra.records.attempt import failures
from hpc_hydra.schedulers.node_commands import parse_with_command


def guard(argv: Sequence[str]) -> int:
    """Return the exit code of the command."""
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node guard", allow_abbrev=False)
    _, command = parse_with_command(parser, argv)
    signals = Signals()
    return wait(start_program(command, signals), signals, failures())
