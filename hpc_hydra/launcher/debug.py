"""``launch.debug=true -m``: execute each run in this process with one rank, so that pdb works. No scheduler.

Must not know: schedulers, plans.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.types import HydraContext, TaskFunction

from hpc_hydra.launcher.prepare import Preparer
from hpc_hydra.records.batching import Run
from hpc_hydra.records.frozen_config import fix_run
from hpc_hydra.ui.progress import complain, say
from hpc_hydra.ui.run_table import shown_overrides


def note_on_ranks(processes: int) -> None:
    """Print a note if the configuration asks for more ranks than the one that runs."""
    if processes > 1:
        complain("note: launch.debug runs one rank, in this process; the configuration asks for more")


def run_all(
    context: HydraContext, function: TaskFunction, preparer: Preparer, runs: Sequence[Run]
) -> Sequence[JobReturn]:
    """Execute runs one after the other, like Hydra's basic launcher. The first exception is raised."""
    results = []
    note_on_ranks(max(run.plan.world_size for run in runs))
    for run in runs:
        say(f"run {run.num} in this process (launch.debug): {shown_overrides(run.told)}")
        cfg = preparer.composer.compose(run.overrides).cfg
        fix_run(cfg, preparer.root, run.num, run.dir)
        result = run_job(
            task_function=function,
            config=cfg,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=context,
        )
        if result.status is not JobStatus.COMPLETED:
            _ = result.return_value  # raises the original exception, for a debugger
        results.append(result)
    return results
