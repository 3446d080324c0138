"""What the job script says about the run that is being executed: the HPC_HYDRA_* variables.

Must not know: which process of the run this is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra.errors import SweepError
from hpc_hydra.sweep.frozen import RunRecord, read_run
from hpc_hydra.sweep.layout import RunPaths


@dataclass(frozen=True)
class Execution:
    """One attempt of one run."""

    sweep: Path
    run: int
    job: str
    attempt: str  # YYYYmmdd-HHMMSS-<job id>, made by the job script: the same for all ranks
    scheduler: str
    attached: bool = False  # a console shows the output of the ranks

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Execution:
        """From the environment. Raises `SweepError` naming the variable that is missing or no use."""

        def value(name: str) -> str:
            found = env.get(f"HPC_HYDRA_{name}")
            if not found:
                raise SweepError(
                    "is not set",
                    where=f"HPC_HYDRA_{name}",
                    fix="start the job script, which sets it and starts the ranks",
                )
            return found

        run = value("RUN")
        if not run.isdigit():
            raise SweepError(f"{run!r} is not the number of a run", where="HPC_HYDRA_RUN")
        return cls(
            sweep=Path(value("SWEEP")),
            run=int(run),
            job=value("JOB"),
            attempt=value("ATTEMPT"),
            scheduler=value("SCHEDULER"),
            attached=bool(env.get("HPC_HYDRA_ATTACHED")),
        )

    @property
    def job_id(self) -> str:
        """The scheduler's id of the job, as the script put it into the attempt's name."""
        return self.attempt.split("-", 2)[-1]

    def record(self) -> RunRecord:
        return read_run(self.sweep, self.run)

    def paths(self, record: RunRecord) -> RunPaths:
        return RunPaths(record.dir)
