"""Requests and job specs as the launcher makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_hydra.planning.types import EnvVar, Plan, Request
from hpc_hydra.schedulers.base import JobSpec

PYTHON = "/venv/bin/python"


def request(**fields: Any) -> Request:
    return replace(Request(scheduler="slurm", nodes=1, procs_per_node=1), **fields)


def spec(
    asked: Request | None = None,
    *,
    runs: tuple[int, ...] = (0,),
    root: Path = Path("/sweep"),
    workdir: Path = Path("/work"),
    env: tuple[EnvVar, ...] = (),
    **fields: Any,
) -> JobSpec:
    values: dict[str, Any] = {
        "key": "job0",
        "plan": Plan(system="test", request=asked or request(), env=env, python=PYTHON),
        "runs": runs,
        "sweep": root,
        "workdir": workdir,
        "tag": "hpc_hydra-7f3a-job0",
        "log": root / ".hpc_hydra" / "jobs",
        "rank_command": (PYTHON, "-m", "hpc_hydra.node", "rank"),
        "finish_command": (PYTHON, "-m", "hpc_hydra.node", "finish"),
        "environ": {"HPC_HYDRA_PLAN": "plan0"},
    }
    return JobSpec(**{**values, **fields})
