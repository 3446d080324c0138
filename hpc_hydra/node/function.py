"""One task of a function that an executor for submitit's users sent: ``python -m hpc_hydra.node function``.

The job is told from its scheduler's variables; what it runs, where its output and result go, are submitit's files.
Must not know: Hydra.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.processes import ignore_signals
from hpc_hydra.schedulers.registry import adapter_for

_PATIENCE = 120.0  # seconds until the pickle is there, which gets its name after the submission


def function(_: Sequence[str] = ()) -> int:
    """Run it; returns the exit code. The result, or the traceback, is pickled as submitit does."""
    from submitit.core import plugins, utils

    environment = _environment()
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
        environment._handle_signals(paths, delayed)
        done, code = ("success", delayed.result()), 0
    except Exception:
        traceback.print_exc()
        done, code = ("error", traceback.format_exc()), 1
    try:
        with utils.temporary_save_path(paths.result_pickle) as temporary:
            utils.cloudpickle_dump(done, temporary)
    except Exception:  # a result that cannot be pickled
        traceback.print_exc()
        with utils.temporary_save_path(paths.result_pickle) as temporary:
            utils.cloudpickle_dump(("error", traceback.format_exc()), temporary)
        return 1
    return code


def _environment() -> Any:
    from hpc_hydra.schedulers.executor import SchedulerJobEnvironment
    from hpc_hydra.schedulers.function_succession import Succession

    class FunctionEnvironment(SchedulerJobEnvironment):
        """submitit's view of this task."""

        @property
        def job_id(self) -> str:
            return os.environ.get(envvars.FUNCTION_JOB) or self.info.job_id

        @property
        def succession(self) -> Succession:
            return Succession(self.paths.folder, self.job_id)

        def goes_on(self) -> bool:
            """Whether the function runs in this job: another one may have been decided on, or none."""
            number, mine = os.environ.get(envvars.FUNCTION_SUCCESSOR), self.info.job_id
            return number is None or self.succession.decide(int(number), mine) == mine

        def _handle_signals(self, paths: Any, submission: Any) -> None:
            super()._handle_signals(paths, submission)
            once = signal.getsignal(self._usr_sig())

            def checkpoint(number: int, frame: Any) -> None:
                signal.signal(number, signal.SIG_IGN)  # the same comes from the scheduler and from who started us
                assert callable(once)
                once(number, frame)

            signal.signal(self._usr_sig(), checkpoint)

        def _requeue(self, countdown: int) -> None:
            ignore_signals()  # the time limit may be reached meanwhile
            submission, run = Path(os.environ[envvars.FUNCTION]), int(os.environ[envvars.RUN])
            new = self.succession.again(submission, run)
            print(f"job {new} goes on with this ({countdown} timeouts left)", flush=True)

    return FunctionEnvironment(adapter_for(os.environ["SUBMITIT_EXECUTOR"]))


def _redirect(path: Path, number: int) -> None:
    (sys.stdout if number == 1 else sys.stderr).flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, number)
    os.close(descriptor)
