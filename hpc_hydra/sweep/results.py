"""Results of runs as Hydra's JobReturn, whose configurations are loaded on demand.

Must not know: how runs are watched.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

from hydra import version
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict, read_write

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.records.batching import Run
from hpc_hydra.records.frozen_config import read_run, thaw
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.types import Outcome


class RunFailed(HpcHydraError):
    """A run of the sweep failed, as described by ``outcome``."""

    exit_code = 1

    def __init__(self, run: Run, outcome: Outcome) -> None:
        self.run, self.outcome = run, outcome
        what = outcome.reason or f"{outcome.status} with exit code {outcome.exit_code}"
        log = f" (log: {outcome.log})" if outcome.log else ""
        super().__init__(f"{what}{log}", where=f"run {run.num}")

    def __reduce__(self) -> Any:
        return RunFailed, (self.run, self.outcome)


class RunReturn(JobReturn):
    """A JobReturn whose configurations are loaded on first access, so that thousands of them stay small."""

    def __init__(self, sweep: Path, run: Run, outcome: Outcome, *, task_name: str, program_kind: str) -> None:
        self._sweep, self._run, self._outcome, self._program_kind = sweep, run, outcome, program_kind
        self._cfg: DictConfig | None = None
        self._hydra_cfg: DictConfig | None = None
        super().__init__(
            overrides=[o for o in run.overrides if not o.startswith("hydra.")], working_dir=None, task_name=task_name
        )
        completed = outcome.status == "completed"
        self.status = JobStatus.COMPLETED if completed else JobStatus.FAILED
        self._return_value = value(run, outcome) if completed else self._error(run, outcome)

    @property
    def exit_code(self) -> int:
        """The program's exit code; never 0 if the run is not completed."""
        return 0 if self._outcome.status == "completed" else self._outcome.exit_code or 1

    @property
    def cfg(self) -> DictConfig | None:
        self._thaw()
        return self._cfg

    @cfg.setter
    def cfg(self, value: DictConfig | None) -> None:
        self._cfg = value

    @property
    def hydra_cfg(self) -> DictConfig | None:
        self._thaw()
        return self._hydra_cfg

    @hydra_cfg.setter
    def hydra_cfg(self, value: DictConfig | None) -> None:
        self._hydra_cfg = value

    @property
    def working_dir(self) -> str | None:
        """The task's working directory: its output directory with ``hydra.job.chdir``, else the launch directory."""
        hydra_cfg = self.hydra_cfg
        if hydra_cfg is None:
            return None
        chdir = hydra_cfg.hydra.job.chdir
        if chdir is None:  # Hydra 1.3 with an old version_base
            chdir = not version.base_at_least("1.2")
        return str(self._run.dir if chdir else hydra_cfg.hydra.runtime.cwd)

    @working_dir.setter
    def working_dir(self, value: str | None) -> None:
        pass

    def _thaw(self) -> None:
        if self._cfg is not None:
            return
        whole = thaw(self._sweep, read_run(self._sweep, self._run.num), job_id=self._outcome.job_id or None)
        with read_write(whole.hydra.runtime), open_dict(whole.hydra.runtime):
            whole.hydra.runtime.output_dir = str(self._run.dir)
        self._hydra_cfg = OmegaConf.masked_copy(whole, "hydra")
        composition.set_parent(self._hydra_cfg.hydra, whole)
        task = copy.deepcopy(whole)
        with flag_override(task, ["readonly", "struct"], False):
            del task["hydra"]
        self._cfg = task

    def _error(self, run: Run, outcome: Outcome) -> Any:
        """Return the task's own exception if the rank could save it, else a `RunFailed`."""
        if self._program_kind != "task":
            return RunFailed(run, outcome)
        try:
            with RunPaths(run.dir).result.open("rb") as file:
                kept = pickle.load(file)
        except Exception:
            return RunFailed(run, outcome)
        if not isinstance(kept, JobReturn) or not isinstance(kept._return_value, BaseException):
            return RunFailed(run, outcome)
        for name in ("_remote_traceback", "_remote_exception_chain", "_remote_exception_group"):
            if hasattr(kept, name):  # Hydra 1.4
                setattr(self, name, getattr(kept, name))
        return kept._return_value


def value(run: Run, outcome: Outcome) -> Any:
    """Return the value that a run's task function returned."""
    if outcome.result_kind == "json":
        return outcome.result
    if outcome.result_kind == "unserialisable":
        return outcome.result_note
    if outcome.result_kind == "pickle":
        path = RunPaths(run.dir).result
        whole = not (outcome.result_in_file and isinstance(outcome.result, dict))
        try:
            with path.open("rb") as file:
                kept = pickle.load(file)
            return kept if whole else {**outcome.result, **kept}
        except Exception as error:
            why = f"the return value cannot be read from {path}: {type(error).__name__}: {error}"
            return why if whole else {**outcome.result, **dict.fromkeys(outcome.result_in_file, why)}
    return None
