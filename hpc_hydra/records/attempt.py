"""What the job script says about the run that is being executed: the HPC_HYDRA_* variables.

Must not know: which process of the run this is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.records.collect import first_cause, read_ends
from hpc_hydra.records.frozen_config import RunRecord, check_launch, read_run
from hpc_hydra.records.layout import RunPaths


@dataclass(frozen=True)
class Attempt:
    """One attempt of one run."""

    sweep: Path
    run: int
    job: str
    name: str  # YYYYmmdd-HHMMSS-<job id>, in UTC, made by the job script: the same for all ranks
    scheduler: str
    launch: str | None = None  # whose records the script belongs to
    attached: bool = False  # a console shows the output of the ranks
    replica: int | None = None  # the replica group that this process belongs to
    again: int = 0  # how often that was started before

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Attempt:
        """From the environment. Raises `SweepError` naming the variable that is missing or no use."""

        def value(name: str) -> str:
            found = env.get(name)
            if not found:
                raise SweepError(
                    "is not set",
                    where=name,
                    fix="start the job script, which sets it and starts the ranks",
                )
            return found

        run = value(envvars.RUN)
        if not run.isdigit():
            raise SweepError(f"{run!r} is not the number of a run", where=envvars.RUN)
        return cls(
            sweep=Path(value(envvars.SWEEP)),
            run=int(run),
            job=value(envvars.JOB),
            name=value(envvars.ATTEMPT),
            scheduler=value(envvars.SCHEDULER),
            launch=env.get(envvars.LAUNCH),
            attached=bool(env.get(envvars.ATTACHED)),
            replica=int(env[envvars.REPLICA]) if env.get(envvars.REPLICA, "").isdigit() else None,
            again=int(env[envvars.REPLICA_RESTARTS]) if env.get(envvars.REPLICA_RESTARTS, "").isdigit() else 0,
        )

    @property
    def place(self) -> str:
        """What names the directory of logs: the attempt, or a replica group's part of it."""
        return self.name if self.replica is None else f"{self.name}/replica_{self.replica}"

    @property
    def token(self) -> str:
        """The same for all processes that belong together, and for no others."""
        return self.name if self.replica is None else f"{self.place}.{self.again}"

    @property
    def job_id(self) -> str:
        """The scheduler's id of the job, as the script put it into the attempt's name."""
        return self.name.split("-", 2)[-1]

    def meeting(self, paths: RunPaths) -> Path:
        """Where the first of these processes says where it is."""
        file = paths.rendezvous(self.place)
        return file.with_name(f"{file.stem}.{self.again}{file.suffix}") if self.again else file

    def record(self) -> RunRecord:
        """Its record. Raises `SweepError`, also where the record is that of another launch."""
        record = read_run(self.sweep, self.run)
        check_launch(self.sweep, record.program, self.launch)
        return record

    def paths(self, record: RunRecord) -> RunPaths:
        return RunPaths(record.dir)


def failures() -> Callable[[], bool]:
    """Tells whether a rank of this attempt has failed by itself."""
    try:
        attempt = Attempt.read(os.environ)
        paths = attempt.paths(attempt.record())
    except HpcHydraError:  # the command is no rank of a run
        return lambda: False
    return lambda: first_cause(read_ends(paths, attempt.name)) is not None
