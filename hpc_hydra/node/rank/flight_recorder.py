"""Torch's flight recorder of NCCL's collectives: the variables by which it writes its dumps beside the logs.

Torch renamed some of them; both names are set, as ``TORCH_NCCL_TRACE_BUFFER_SIZE`` is still read beside
``TORCH_FR_BUFFER_SIZE`` (torch 2.13). Older ones are documented since 2.4:
https://pytorch.org/docs/2.4/torch_nccl_environment_variables.html. Must not know: torch, the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from pathlib import Path

PREFIX = "nccl_trace_rank_"  # of the files; torch appends the rank
SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)


def switch_on(env: MutableMapping[str, str], size: int, folder: Path) -> None:
    """Set the variables, unless the user has set one of the same meaning, and create the directory of the dumps.

    Args:
        size: number of collectives that are kept.
    """
    if not any(name in env for name in FILE):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    for names, value in ((SIZE, str(size)), (FILE, str(folder / PREFIX)), (DUMP, "1")):
        if not any(name in env for name in names):
            env.update(dict.fromkeys(names, value))
