"""The attempt that this process belongs to, from the HPC_HYDRA_* variables set by the job script.

Must not know: which process of the run this is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.records.cause import first_cause
from hpc_hydra.records.collect import read_ends
from hpc_hydra.records.frozen_config import RunRecord, check_launch, read_run
from hpc_hydra.records.layout import RunPaths


@dataclass(frozen=True)
class Attempt:
    """One attempt of one run."""

    sweep: Path
    run: int
    job: str
    name: str  # YYYYmmdd-HHMMSS-<job id>, in UTC; set by the job script, the same for all ranks
    scheduler: str
    launch: str | None = None  # the launch that wrote the job script
    attached: bool = False  # the ranks' output is shown on a console
    temporary: bool = False  # the directory of the run is removed at its end
    replica: int | None = None  # the replica group of this process
    again: int = 0  # number of earlier starts of the replica group

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Attempt:
        """Read the environment. Raises `SweepError` naming a missing or invalid variable."""

        def value(name: str) -> str:
            found = env.get(name)
            if not found:
                raise SweepError(
                    "is not set",
                    where=name,
                    fix="run the job script, which sets it and starts the ranks",
                )
            return found

        run = value(envvars.RUN)
        if not run.isdigit():
            raise SweepError(f"{run!r} is not a run number", where=envvars.RUN)
        return cls(
            sweep=Path(value(envvars.SWEEP)),
            run=int(run),
            job=value(envvars.JOB),
            name=value(envvars.ATTEMPT),
            scheduler=value(envvars.SCHEDULER),
            launch=env.get(envvars.LAUNCH),
            attached=bool(env.get(envvars.ATTACHED)),
            temporary=bool(env.get(envvars.TEMPORARY)),
            replica=int(env[envvars.REPLICA]) if env.get(envvars.REPLICA, "").isdigit() else None,
            again=int(env[envvars.REPLICA_RESTARTS]) if env.get(envvars.REPLICA_RESTARTS, "").isdigit() else 0,
        )

    @property
    def place(self) -> str:
        """Name of the log directory: the attempt, or the part of a replica group in it."""
        return self.name if self.replica is None else f"{self.name}/replica_{self.replica}"

    @property
    def token(self) -> str:
        """Identifies the processes that form one world, including the restarts of a replica group."""
        return self.name if self.replica is None else f"{self.place}.{self.again}"

    @property
    def job_id(self) -> str:
        """The scheduler's id of the job, taken from the attempt's name."""
        return self.name.split("-", 2)[-1]

    def meeting(self, paths: RunPaths) -> Path:
        """Path of the file in which rank 0 publishes its address."""
        file = paths.rendezvous(self.place)
        return file.with_name(f"{file.stem}.{self.again}{file.suffix}") if self.again else file

    def record(self) -> RunRecord:
        """Read the record of the run. Raises `SweepError`, also if it belongs to another launch."""
        record = read_run(self.sweep, self.run)
        check_launch(self.sweep, record.program, self.launch)
        return record

    def paths(self, record: RunRecord) -> RunPaths:
        return RunPaths(record.dir)


def failures() -> Callable[[], bool]:
    """Return a function that tells whether a rank of this attempt has failed by itself."""
    try:
        attempt = Attempt.read(os.environ)
        paths = attempt.paths(attempt.record())
    except HpcHydraError:  # the command does not belong to a run
        return lambda: False
    return lambda: first_cause(read_ends(paths, attempt.name)) is not None
