"""The log of a job whose ranks never started: the line that says why, among those that only follow from it."""

from __future__ import annotations

import pytest

from hpc_hydra.records.job_log import why_not_started

_ENDS = [
    "srun: error: node02: tasks 2-3: Exited with exit code 1",
    "slurmstepd-node01: error: *** STEP 7.0 ON node01 CANCELLED AT 2026-12-01T11:49:23 ***",
    "lsf: TERM_OWNER: job killed by owner.",
]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "/usr/bin/python3: Error while finding module specification for 'hpc_hydra.node' (ModuleNotFoundError: …)",
            "hpc_hydra cannot be imported by /usr/bin/python3 on its node (Try: install it there, or launch.python=",
        ),
        ("/opt/py/bin/python: No module named hpc_hydra", "hpc_hydra cannot be imported by /opt/py/bin/python"),
        (
            "slurmstepd-node02: error: execve(): /no/python: No such file or directory",
            "/no/python on its node: No such file or directory (Try: launch.python=",
        ),
        ("/spool/slurm_script: line 39: /no/python3.12: Permission denied", "/no/python3.12 on its node: Permission"),
        ("job0.sh: 28: python3: not found", "python3 on its node: not found"),
        ("bash: srun: command not found", "bash: srun: command not found"),
        ("srun: error: Unable to create step for job 7", "srun: error: Unable to create step for job 7"),
        ("ImportError: libcudart.so.12", "ImportError: libcudart.so.12"),
    ],
)
def test_the_last_telling_line_is_the_reason(line: str, told: str) -> None:
    found = why_not_started(["module: error: an earlier one", line, *_ENDS])
    assert found is not None and found.startswith(told)


def test_without_a_telling_line_there_is_no_reason() -> None:
    assert why_not_started(["hello", *_ENDS]) is None
