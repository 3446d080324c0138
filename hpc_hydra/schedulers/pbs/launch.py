"""Commands that start ranks on the hosts of a PBS job: our starter on pbs_tmrsh, or mpiexec.

Pure. Must not know: scripts, jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.tasks import preflight_request
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.schedulers.job import CHOSEN, ChosenNodes
from hpc_hydra.schedulers.pbs import options, ranks


def all_ranks(request: Request, python: str) -> list[str]:
    """The command that starts one process per rank, after which the ranks are warned in time."""
    node = _node(python)
    if request.warn_signal is not None:
        return [*node, "timed", request.warn_signal, "--", *_launch(request, node)]
    return _launch(request, node)


def preflight(plan: Plan, python: str) -> list[str]:
    """The command that starts one process per host."""
    request = preflight_request(plan)
    argv = _launch(request, _node(python))
    return ["env", f"{ranks.PROCS}=1", *argv] if options.launcher(request) != "none" else argv


def on_chosen(request: Request, python: str) -> ChosenNodes:
    """As `all_ranks`, on the hosts that passed the preflight. Raises `PlanError` with mpiexec."""
    if options.launcher(request) != "none":
        raise PlanError(
            "mpiexec starts the ranks, on the first hosts of the job",
            where="launch.spare_nodes",
            fix="launch.spare_nodes=0, or scheduler.mpi=none",
        )
    options.check_launch(request)
    argv = [*starter(request, python), *per_node(request)]
    if request.warn_signal is not None:
        argv = [*_node(python), "timed", request.warn_signal, "--", *argv]
    return ChosenNodes(argv, f'"--hosts=${CHOSEN}" --')


def starter(request: Request, python: str) -> list[str]:
    """Our starter on the hosts of the job, without what it starts."""
    return [*_node(python), "tmrsh", "--nodes", str(request.nodes)]


def per_node(request: Request) -> Iterator[str]:
    """Arguments of our starter: the ranks of a host."""
    yield from ("--procs", str(request.procs_per_node), "--gpus-per-proc", str(request.gpus_per_proc))
    if request.cpus_per_proc is not None:
        yield from ("--cpus-per-proc", str(request.cpus_per_proc))


def _node(python: str) -> list[str]:
    return [python, "-m", "hpc_hydra.node"]


def _launch(request: Request, node: Sequence[str]) -> list[str]:
    if options.launcher(request) != "none":
        return [*node, "guard", "--", *options.mpiexec(request)]
    options.check_launch(request)
    if request.nodes == 1:  # the script is there already
        return [*node, "spawn", *per_node(request), "--"]
    independent = ["--independent"] if request.steps_survive_node_loss else []
    return [*node, "tmrsh", "--nodes", str(request.nodes), *per_node(request), *independent, "--"]
