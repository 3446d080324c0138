"""Find in the log of a job whose ranks never started why they did not.

Must not know: any scheduler, where the log is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

INSTALL = "install it there, or launch.python=/path/to/python that has it"
_NOT_IMPORTED = re.compile(r"(\S+): (?:No module named|Error while finding module specification for) '?hpc_hydra\b")
_NO_PYTHON = re.compile(
    r"(\S*python[\d.]*): (No such file or directory|Permission denied|(?:command )?not found|cannot execute.*)"
)
_TELLING = re.compile(r"\b(?:error|fatal|cannot|denied|not found|unable|no such|no module)\b|Error\b", re.IGNORECASE)
_CONSEQUENCE = re.compile(r"exited with|exit code \d|terminat|cancelled|killed|aborting", re.IGNORECASE)


def why_not_started(lines: Sequence[str]) -> str | None:
    """Return why no rank started, from the last lines of the job's log: its last error; None without any."""
    for line in reversed(lines):
        if found := _NOT_IMPORTED.search(line):
            return f"hpc_hydra cannot be imported by {found[1]} on its node (Try: {INSTALL})"
        if found := _NO_PYTHON.search(line):
            return f"{found[1]} on its node: {found[2]} (Try: launch.python=/path/to/python that is on all nodes)"
    return next((x.strip() for x in reversed(lines) if _TELLING.search(x) and not _CONSEQUENCE.search(x)), None)
