"""A queue inside an allocation that is already held: each run is a step, and waits until its resources are free.

The scripts run on this machine, as those of `local.queue`. Their launch command starts the ranks in the allocation.
 Must not know: any scheduler's variables, Hydra.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpc_hydra.errors import HpcHydraError, PlanError
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import commands, registry
from hpc_hydra.schedulers.base import Allocation, Scheduler
from hpc_hydra.schedulers.capabilities import JobSteps, StepSignals
from hpc_hydra.schedulers.local.queue import LocalRun, LocalShare, LocalSubmitter
from hpc_hydra.schedulers.registry import STEP

_ASK = 20.0  # seconds for a command of the scheduler
_PLACES = ("nodelist", "dependency")
"""Fields that select where and when a job begins: too late in an allocation already held."""


class StepSubmitter(LocalSubmitter):
    """Starts runs in the order of submission, as soon as the allocation has room for them."""

    adapter: JobSteps

    def __init__(self, adapter: JobSteps, allocation: Allocation) -> None:
        super().__init__(adapter)
        self.allocation = allocation
        self.label = f"{adapter.name}{STEP}"
        self._slots = list(allocation.slots)
        self._cards = list(allocation.gpus or (0,) * len(allocation.hosts))
        self._nodes: dict[str, tuple[int, ...]] = {}  # run → indices of its hosts

    def check(self, request: Request) -> None:
        for key, value in (
            ("launch.signal_before_end", request.warn_signal),
            ("launch.max_requeues", request.max_requeues),
        ):
            if value:
                raise PlanError(
                    f"the run is a step of the allocation {self.allocation.job_id}, which has its own time limit",
                    where=key,
                    fix="launch.inside=submit for jobs of their own, or leave it out",
                )
        if request.spare_nodes:
            raise PlanError(
                f"the run is a step of the allocation {self.allocation.job_id}, whose nodes are fixed",
                where="launch.spare_nodes",
                fix="launch.inside=submit for jobs of their own, or launch.spare_nodes=0",
            )
        for name in _PLACES:
            if getattr(request, name) is not None:
                raise PlanError(
                    f"the run is a step of the allocation {self.allocation.job_id}, whose hosts are fixed",
                    where=f"scheduler.{name}",
                    fix="launch.inside=submit for jobs of their own, or leave it out",
                )
        super().check(request)

    @property
    def outlives_launcher(self) -> bool:
        return False

    def _share(self, request: Request) -> LocalShare:
        """Return the share of each node. Raises `PlanError` if the allocation is too small."""
        alone = request.exclusive or not self.adapter.steps_share_nodes
        share = LocalShare(gpus_of(request), cores_of(request), alone=alone)
        for key, needed, available, what in (
            ("resources.nodes", request.nodes, len(self.allocation.hosts), "nodes"),
            ("resources.cpus_per_proc", share.cpus, min(self.allocation.slots), "cores of a node"),
            ("resources.gpus_per_proc", share.gpus, min(self.allocation.gpus or (0,)), "GPUs of a node"),
        ):
            if needed > available and not (alone and key == "resources.cpus_per_proc"):
                raise PlanError(
                    f"a run needs {needed} {what}, but the allocation {self.allocation.job_id} has {available}",
                    where=key,
                    fix="launch.inside=submit for jobs of their own, or smaller runs",
                )
        return share

    def _room(self, run: LocalRun) -> list[int]:
        share = run.share
        if share.alone:
            return [i for i in range(len(self.allocation.hosts)) if self._is_free(i)]
        free = enumerate(zip(self._slots, self._cards, strict=True))
        return [i for i, (cores, gpus) in free if cores >= share.cpus and gpus >= share.gpus]

    def _is_free(self, node: int) -> bool:
        return all(node not in nodes for nodes in self._nodes.values())

    def _fits(self, run: LocalRun) -> bool:
        if any(other.share.alone for other in self._running) and not self.adapter.steps_share_nodes:
            return False
        return len(self._room(run)) >= run.spec.plan.request.nodes

    def _take(self, run: LocalRun) -> None:
        chosen = self._room(run)[: run.spec.plan.request.nodes]
        self._nodes[run.id] = tuple(chosen)
        self._add(run, -1)

    def _give_back(self, run: LocalRun) -> None:
        self._add(run, 1)
        del self._nodes[run.id]

    def _add(self, run: LocalRun, sign: int) -> None:
        gpus = self.allocation.gpus or (0,) * len(self.allocation.hosts)
        for i in self._nodes[run.id]:
            self._slots[i] += sign * (self.allocation.slots[i] if run.share.alone else run.share.cpus)
            self._cards[i] += sign * (gpus[i] if run.share.alone else run.share.gpus)

    def _ask(self, group: int) -> None:
        threading.Thread(target=ask, args=(self.adapter, group), name=f"hpc_hydra ends {group}", daemon=True).start()

    def _force(self, group: int) -> None:
        force(self.adapter, group)

    def _environment(self, run: LocalRun) -> dict[str, str]:
        return self.adapter.step_environment(os.environ, task_request(run.spec.plan), self.allocation)


def ask(adapter: Scheduler, group: int) -> None:
    """Ask a run to end: send SIGTERM to its ranks and its local processes, except launch commands that kill ranks."""
    reached = ask_ranks(adapter, group)
    if reached is None:
        _signal(group, signal.SIGTERM)
        return
    members = _members(group)
    launcher = adapter.launch_executable if isinstance(adapter, StepSignals) else None
    launching = [pid for pid, name in members.items() if name == launcher]
    if launching and not reached:  # a step that has not begun, or is unreachable
        force(adapter, group)
        return
    for pid in members.keys() - set(launching):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def ask_ranks(adapter: Scheduler, group: int) -> bool | None:
    """Send SIGTERM directly to the ranks of a run's steps; return whether they were reached.

    None: the scheduler cannot signal steps, so the launch command has to be signalled.

    Args:
        group: process group of the run's script.
    """
    if not isinstance(adapter, StepSignals):
        return None
    try:
        data = Path(f"/proc/{group}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    env = dict(os.fsdecode(line).split("=", 1) for line in data if b"=" in line)
    command = adapter.steps_command(env)
    if command is None:
        return None
    here, steps = socket.gethostname().partition(".")[0], []
    with suppress(HpcHydraError):
        for (host, pid), step in adapter.parse_steps(commands.run(command, env=env, timeout=_ASK).out).items():
            with suppress(ProcessLookupError):
                if host == here and os.getpgid(pid) == group:
                    steps.append(step)
        if steps and not commands.run(adapter.terminate_steps_command(steps), env=env, timeout=_ASK).ok:
            steps = []
    return bool(steps)


def force(adapter: Scheduler, group: int) -> None:
    """Kill a run that did not end when asked. The script is killed first, so that it reports no failure."""
    if not isinstance(adapter, StepSignals):
        _signal(group, signal.SIGKILL)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(group, signal.SIGKILL)
    _signal(group, signal.SIGTERM)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _members(group: int) -> dict[int, str]:
    """Return the processes of a group: pid → program."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = path.read_text(errors="replace").rpartition(")")
            if int(rest.split()[2]) == group:
                found[int(path.parent.name)] = head.partition("(")[2]
    return found


def cores_of(request: Request) -> int:
    """Return the cores of a run on each node."""
    return request.procs_per_node * (request.cpus_per_proc or 1)


def gpus_of(request: Request) -> int:
    """Return the GPUs of a run on each node."""
    return 0 if request.gpu_request == "none" else request.shared_gpus or request.procs_per_node * request.gpus_per_proc


def main(argv: Sequence[str]) -> int:
    """``python -m hpc_hydra.node ask_ranks SCHEDULER GROUP``."""
    name, group = argv
    return 0 if ask_ranks(registry.adapter_for(name), int(group)) else 1
