"""Runs a scheduler's launch command and ends it after a rank has failed, if it does not end by itself.

    python -m hpc_hydra.node guard -- jsrun … command args…

Signals are forwarded to it. Must not know: what the command does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from hpc_hydra.node.modes.mpiexec import watch
from hpc_hydra.processes import Signals, die_with_parent
from hpc_hydra.records.attempt import failures


def guard(argv: Sequence[str]) -> int:
    """Return the command's exit code; 2 without a command."""
    command = list(argv[1:]) if argv[:1] == ["--"] else []
    if not command:
        print("usage: python -m hpc_hydra.node guard -- command args…", file=sys.stderr)
        return 2
    signals = Signals()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)  # what is sent to this process's group comes to it once, from here
            die_with_parent(parent, signal.SIGTERM)
            signals.restore()
            os.execvp(command[0], command)
        except OSError as error:
            print(f"hpc_hydra: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)
    return watch(child, signals, failures())
