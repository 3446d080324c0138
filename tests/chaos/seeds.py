"""Rounds that once found a fault of hpc_hydra, each with the fault, and a planned one. Tests play them again; round N
is seed -N.
"""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.plan import MODES, Fault, Round

_MODE = {mode.name: mode for mode in MODES}

FOUND = (
    # A job that an administrator requeued was failed, and resume ran it beside the requeued job: a rank that had lost
    # another one had failed. The same happened when SLURM requeued a job that had lost a node.
    Round(
        seed=-1, mode=_MODE["ranks"], runs=2, nodes=2, procs_per_node=1, steps=30, pause=0.1, queue="gpu", requeues=1,
        faults=(Fault("requeue", 0.4, True, 0.16, 0.8),),
    ),
    # SLURM requeued a job whose node was lost after its ranks had completed, and it repeated its runs.
    Round(
        seed=-2, mode=_MODE["ranks"], runs=3, nodes=1, procs_per_node=1, steps=20, pause=0.05, queue="gpu", requeues=3,
        faults=(Fault("kill_node", 0.9, True, 0.1, 3.0),),
    ),
    # The loss of its first node left a job of replica groups in the queue, running nothing until its time limit.
    Round(
        seed=-3, mode=_MODE["torchft"], runs=1, nodes=2, procs_per_node=1, steps=150, pause=0.1, queue="gpu",
        requeues=0, faults=(Fault("kill_node", 3.0, True, 0.1, 3.0),),
    ),
    # `resume` repeated a run whose torchrun agent was killed after all its ranks had completed.
    Round(
        seed=-4, mode=_MODE["torchrun"], runs=1, nodes=2, procs_per_node=1, steps=30, pause=0.05, queue="spot",
        requeues=1, faults=(Fault("kill_rank", 5.65, True, 0.52, 7.5),),
    ),
)  # fmt: skip

PLANNED = Round(
    seed=-5, mode=replace(_MODE["ranks"], words=("resources.exclusive=true",)), runs=3, nodes=1, procs_per_node=2,
    steps=100, pause=0.1, queue="spot", requeues=1,
    faults=(
        Fault("hang", 0.5, True, 0.1, 0.0),
        Fault("kill_node", 1.0, True, 0.5, 3.0),
        Fault("preempt", 1.5, True, 0.9, 3.0),
    ),
)  # fmt: skip
"""Each run has a node of its own and is hit by another fault. Time limits are minutes."""

DRAWN = (
    9017,  # replica groups whose srun had ended with 0 after a preemption counted as completed
    9069,  # a late record of an earlier attempt replaced that of the completed one
    9125,  # a run that was cancelled before its ranks had started was failed
    9262,  # of a step that SLURM refused after a restart of slurmctld, only the exit code was told
)
"""Seeds whose rounds have found a fault."""
