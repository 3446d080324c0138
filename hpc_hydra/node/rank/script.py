"""A Python program of a command line, started with what the plan asks for: its process group, a cap on GPU memory.

    python -m hpc_hydra.node script [--init] -- train.py args…      (or -- -m package.module args…)

Must not know: who started the rank, Hydra.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def script(argv: Sequence[str]) -> int:
    """Run the program as ``__main__``; its `SystemExit` passes through. Raises `HpcHydraError`."""
    from hpc_hydra.node.rank import distributed, stacks

    stacks.listen(stacks.handed_on())
    at = list(argv).index("--")
    own, command = list(argv[:at]), list(argv[at + 1 :])
    if "--init" in own:
        with distributed.distributed():
            _run(command)
    else:
        distributed.cap_memory()
        _run(command)
    return 0


def _run(command: list[str]) -> None:
    from hpc_hydra.node.rank import gc_tuning
    from hpc_hydra.node.rank.program import start
    from hpc_hydra.records.frozen_config import Program

    gc_tuning.restore_thresholds()
    is_module = command[0] == "-m"
    target = command[1] if is_module else command[0]
    sys.argv = command[1:] if is_module else command
    sys.path.insert(0, str(Path.cwd()) if is_module else str(Path(target).resolve().parent))  # as Python does
    start(Program("module" if is_module else "script", target))
