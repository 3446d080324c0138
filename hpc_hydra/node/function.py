"""One task of a function submitted by `schedulers.executor`: ``python -m hpc_hydra.node function``.

The variables of the scheduler identify the job; the function, its output and its result are in submitit's files.
Must not know: Hydra.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from hpc_hydra.schedulers.registry import adapter_for

_PATIENCE = 120.0  # seconds to wait for the pickle, which is named after the job once that is submitted


def function(_: Sequence[str] = ()) -> int:
    """Run the function; returns the exit code. Pickles the result or the traceback as submitit does."""
    from submitit.core import plugins, utils

    from hpc_hydra.schedulers.executor import JobEnvironment

    environment = JobEnvironment(adapter_for(os.environ["SUBMITIT_EXECUTOR"]))
    plugins.get_job_environments()[environment.name()] = environment  # submitit.JobEnvironment() in the user's code
    paths = environment.paths
    if not environment.goes_on():
        print(f"hpc_hydra: the function of job {environment.job_id} does not go on in this job", flush=True)
        return 0
    _redirect(paths.stdout, 1)
    _redirect(paths.stderr, 2)
    try:
        end = time.monotonic() + _PATIENCE
        while not paths.submitted_pickle.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"there is no {paths.submitted_pickle}")
            time.sleep(0.1)
        delayed = utils.DelayedSubmission.load(paths.submitted_pickle)
        environment.handle_signals(delayed)
        done, code = ("success", delayed.result()), 0
    except Exception:
        traceback.print_exc()
        done, code = ("error", traceback.format_exc()), 1
    partial = paths.result_pickle.with_suffix(".partial")  # may be left by an attempt that was killed
    try:
        utils.cloudpickle_dump(done, partial)
    except Exception:  # a result that cannot be pickled
        traceback.print_exc()
        code = 1
        utils.cloudpickle_dump(("error", traceback.format_exc()), partial)
    partial.replace(paths.result_pickle)
    return code


def _redirect(path: Path, number: int) -> None:
    (sys.stdout if number == 1 else sys.stderr).flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, number)
    os.close(descriptor)
