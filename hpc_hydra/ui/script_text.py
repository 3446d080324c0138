"""Job scripts as a dry run shows them: the first of a kind in full, the others as what differs.

Must not know: what the lines of a script mean.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpc_hydra.schedulers import job_script
from hpc_hydra.schedulers.base import JobSpec


def without_environment(spec: JobSpec, script: str) -> str:
    """Return a script with one comment in place of the lines that set the plan's variables."""
    block = "\n".join(job_script.variables(spec))
    comment = "\n# here: the environment of the ranks, see above (launch.dry_run=script prints the whole script)"
    return script.replace(block, comment, 1) if block else script


def differences(first: str, other: str) -> Iterator[str]:
    """Yield the lines that only one of two scripts has, marked by - and +."""
    import difflib  # imported here: a single script has no differences

    for line in difflib.unified_diff(first.splitlines(), other.splitlines(), lineterm="", n=0):
        if not line.startswith(("--- ", "+++ ", "@@")):
            yield line
