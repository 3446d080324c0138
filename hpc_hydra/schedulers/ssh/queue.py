"""A queue over hosts reached by ssh: each run gets hosts of its own, and waits until they are free.

The scripts run on this machine, as those of `local.queue`. Their standard input closes when this process ends, and they
stop their hosts. Must not know: Hydra, what a run computes.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from hpc_hydra.errors import SchedulerError
from hpc_hydra.planning.tasks import allocated
from hpc_hydra.planning.types import Request
from hpc_hydra.records.bad_nodes import bad_nodes
from hpc_hydra.schedulers import capability_checks, commands
from hpc_hydra.schedulers.base import JobStatus, Scheduler, State
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.exclusion import is_same, usable
from hpc_hydra.schedulers.local.queue import LocalRun, LocalShare, LocalSubmitter
from hpc_hydra.schedulers.ssh.adapter import explain, options, ssh_command

log = logging.getLogger(__name__)

AT_ONCE = 32  # hosts that are checked concurrently
ANSWER = 60.0  # seconds
UNREACHABLE = 255  # ssh's own exit code


class SshSubmitter(LocalSubmitter):
    """Starts runs in the order of submission, as soon as enough hosts are free."""

    _stdin = subprocess.PIPE  # closes with this process, however it ends

    def __init__(self, adapter: Scheduler) -> None:
        super().__init__(adapter)
        self._busy: set[str] = set()
        self._reached: set[tuple[str, ...]] = set()
        self._lost: dict[str, str] = {}  # lost host → why

    def check(self, request: Request) -> None:
        """Also check once that all hosts are reachable. Raises `SchedulerError` naming those that are not."""
        capability_checks.check(self.adapter, request)
        if shutil.which(self.adapter.executable) is None:
            raise commands.not_here(self.adapter.executable)
        words = options(request)
        new = [host for host in usable(request) if (host, *words) not in self._reached]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            errors = [why for why in pool.map(lambda host: unreachable(host, words), new) if why is not None]
        if errors:
            raise SchedulerError(
                "; ".join(f"{host}: {what}" for host, what, _ in errors), where="scheduler.hosts", fix=errors[0][2]
            )
        self._reached.update((host, *words) for host in new)

    def _share(self, request: Request) -> LocalShare:
        return LocalShare()

    def _free(self, request: Request) -> list[str]:
        return [host for host in usable(request) if host not in self._busy and host not in self._lost]

    def _run_to_its_end(self, run: LocalRun) -> JobStatus:
        """Bad nodes, and after a lost connection unreachable hosts of the run, get no further runs."""
        status = super()._run_to_its_end(run)
        hosts = run.spec.plan.request.hosts
        bad = {host: node.reason for node in bad_nodes(run.spec.sweep) for host in hosts if is_same(host, node.host)}
        with self._changed:
            self._lost.update(bad)
        if status.exit_code != UNREACHABLE or run.stopped is not None:
            return status
        words = options(run.spec.plan.request)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            lost = [why for why in pool.map(lambda host: unreachable(host, words), run.hosts) if why is not None]
        for host, what, _ in lost:
            log.warning("%s: %s; it gets no further runs", host, what)
        with self._changed:
            self._lost.update({host: what for host, what, _ in lost})
        return status

    def _start_those_that_fit(self) -> None:
        for run in list(self._waiting):
            request = run.spec.plan.request
            left = [host for host in usable(request) if host not in self._lost]
            needed = allocated(request).nodes
            if needed > len(left):
                self._waiting.remove(run)
                lost = "; ".join(f"{host}: {why}" for host, why in self._lost.items() if host in request.hosts)
                why = f"it needs {needed} hosts, but {len(left)} are left ({lost})"
                run.status = JobStatus(State.FAILED, "FAILED", exit_code=1, reason=why)
        super()._start_those_that_fit()

    def _fits(self, run: LocalRun) -> bool:
        request = run.spec.plan.request
        return len(self._free(request)) >= allocated(request).nodes

    def _take(self, run: LocalRun) -> None:
        request = run.spec.plan.request
        run.hosts = tuple(self._free(request)[: allocated(request).nodes])
        self._busy.update(run.hosts)

    def _give_back(self, run: LocalRun) -> None:
        self._busy.difference_update(run.hosts)

    def _command(self, run: LocalRun) -> list[str]:
        return ["bash", str(run.script), str(run.num), ",".join(run.hosts), "lifeline"]

    def _environment(self, run: LocalRun) -> dict[str, str]:
        return cleaned(os.environ)

    @staticmethod
    def _exit(code: int) -> tuple[int, int | None]:
        """The script passes on the exit code of a host: 128+n if a rank was killed there by signal n."""
        code = 128 - code if code < 0 else code
        return code, code - 128 if 128 < code < 128 + 64 else None


def unreachable(host: str, words: list[str]) -> tuple[str, str, str] | None:
    """Return None if ssh reaches the host; else its name, what is wrong, and what to do."""
    answer = commands.run(ssh_command(host, words, "exit 0"), env=cleaned(os.environ), timeout=ANSWER)
    if answer.code == 0:
        return None
    if answer.code is None:
        return host, f"it did not answer within {ANSWER:g} s", f"`ssh -o BatchMode=yes {host} true`"
    return host, *explain(host, answer.code, answer.err, sys.executable)
