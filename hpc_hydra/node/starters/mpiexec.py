"""Starts the ranks of a run by MPI's own launcher, inside the allocation or on this machine.

    python -m hpc_hydra.node mpiexec --nodes N --procs-per-node P [--cpus-per-proc C] -- command args…

For schedulers whose launch command does not support the MPI of mpi4py (no matching PMI). Prefers the launcher installed
beside this interpreter, as by the wheels of MPICH and Open MPI, to the first on PATH.
Must not know: what the command does.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.processes import Children, Signals, exit_code, start_program
from hpc_hydra.records.attempt import failures
from hpc_hydra.schedulers.capabilities import MpiTasks
from hpc_hydra.schedulers.environment import for_other_nodes
from hpc_hydra.schedulers.node_commands import parse_with_command
from hpc_hydra.schedulers.registry import adapter_for

_POLL = 1.0  # seconds between two checks for failed ranks
_PATIENCE = 5.0  # seconds in which a launch command must end the other ranks by itself
_RSH_AGENT = "OMPI_MCA_plm_rsh_agent"
_CHOSEN = (_RSH_AGENT, "OMPI_MCA_plm", "OMPI_MCA_orte_rsh_agent", "OMPI_MCA_pls_rsh_agent")


def mpiexec(argv: Sequence[str]) -> int:
    """Run MPI's launcher; returns its exit code. Raises `RendezvousError` if there is none.

    MPICH's launcher, on several nodes connected by srun, does not end the other ranks when one fails; see `wait`.
    """
    options, command = _parse(argv)
    program = find(Path(sys.executable).parent, os.environ.get("PATH"))
    about = version(program)
    words = arguments(about, options.nodes, options.procs_per_node, os.environ)
    if options.nodes == 1 and needs_no_ssh(about, os.environ):
        os.environ[_RSH_AGENT] = shutil.which("false") or "/bin/false"
    prepare(os.environ, options.procs_per_node, options.cpus_per_proc)
    signals = Signals()
    child = start_program([program, *words, *command], signals)
    return wait(child, signals, failures())


def wait(child: int, signals: Signals, a_rank_failed: Callable[[], bool]) -> int:
    """Wait for a launch command; return its exit code.

    It is stopped if a rank has failed and it does not end the other ranks within `_PATIENCE` seconds.
    """
    children, stop_at = Children([child], signals), None
    while True:
        for _, status in children.wait(_POLL):
            return exit_code(status)[0]
        if stop_at is None and a_rank_failed():
            stop_at = time.monotonic() + _PATIENCE
        elif stop_at is not None and time.monotonic() >= stop_at and not children.are_stopping:
            children.stop()


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node mpiexec", allow_abbrev=False)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--procs-per-node", type=int, required=True)
    parser.add_argument("--cpus-per-proc", type=int, default=None)
    return parse_with_command(parser, argv)


def find(beside: Path, path: str | None) -> str:
    """The launcher: ``mpiexec`` beside the interpreter, else on PATH. Raises `RendezvousError`."""
    for found in (shutil.which("mpiexec", path=str(beside)), shutil.which("mpiexec", path=path)):
        if found:
            return found
    raise RendezvousError(
        f"there is no mpiexec beside {sys.executable}, nor on PATH",
        where="rendezvous.launcher",
        fix="pip install mpich (with mpi4py), or a module of the machine's MPI in scheduler.setup_lines; "
        "rendezvous.launcher=scheduler starts the ranks by the scheduler",
    )


def version(program: str) -> str:
    """What the launcher says about itself."""
    done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def arguments(about: str, nodes: int, procs_per_node: int, env: Mapping[str, str]) -> list[str]:
    """Options that start so many processes on each node of the allocation, in the words of this launcher.

    Open MPI hands on its own variables only, the others by ``-x``; it would bind ranks to a core each and refuse more
    than there are. MPICH's Hydra and its relatives hand on all of them, and do neither.
    """
    total = ["-n", str(nodes * procs_per_node)]
    if re.search(r"Open ?MPI|OpenRTE|PRRTE|prterun", about, re.IGNORECASE):
        ours = [name for name in env if name.startswith(envvars.PREFIX)]
        handed_on = [word for name in sorted({*ours, *for_other_nodes(env)}) for word in ("-x", name)]
        return [*total, "--map-by", f"ppr:{procs_per_node}:node:OVERSUBSCRIBE", "--bind-to", "none", *handed_on]
    return [*total, "-ppn", str(procs_per_node)]


def needs_no_ssh(about: str, env: Mapping[str, str]) -> bool:
    """Whether it is an Open MPI before 5.0, which refuses even one host without ssh, and there is none.

    Not where the user has named another agent than ssh.
    """
    old = re.search(r"\((?:Open ?MPI|OpenRTE)\) [1-4]\.", about)
    path = env.get("PATH")
    return (
        bool(old)
        and not any(name in env for name in _CHOSEN)
        and not any(shutil.which(agent, path=path) for agent in ("ssh", "rsh"))
    )


def prepare(env: MutableMapping[str, str], procs_per_node: int, cpus_per_proc: int | None) -> None:
    """Give the launcher's own process on each node, which the scheduler starts, the cores of all ranks there."""
    adapter = adapter_for(env[envvars.SCHEDULER]) if env.get(envvars.SCHEDULER) else None
    own = adapter.mpiexec_environment(procs_per_node, cpus_per_proc) if isinstance(adapter, MpiTasks) else {}
    if own:
        env.update(own)
    elif cpus_per_proc:
        env.setdefault("OMP_NUM_THREADS", str(cpus_per_proc))
