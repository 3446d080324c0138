"""One round, drawn from its seed: the sweep, and the faults with their times and victims. Pure.

Must not know: how a fault is done, what has to hold afterwards.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mode:
    """A way to run the sweep."""

    name: str
    words: tuple[str, ...] = ()
    weight: int = 1
    torch: bool = False  # it needs torch itself: rounds are smaller
    app: str = "train.py"
    adding: int | None = None  # ranks that add their gradients; None: all


MODES = (
    Mode("ranks", weight=6),
    Mode("pack", ("launch.pack=2",), weight=3),
    Mode("torchrun", ("rendezvous=torchrun", "rendezvous.max_restarts=1"), weight=1, torch=True),
    Mode(
        "torchft",
        ("rendezvous=torchft", "rendezvous.max_restarts=1", "rendezvous.quorum_timeout=5s"),
        weight=1,
        torch=True,
        app="replicas.py",
        adding=1,
    ),
)


@dataclass(frozen=True)
class Fault:
    """``kind`` is a function of `faults`; ``pick`` chooses its victim among those that are there then."""

    kind: str
    at: float  # seconds after the launch, or after the first rank has begun
    begun: bool  # the latter
    pick: float  # 0 to 1
    lasts: float  # seconds until it is mended, if it can be

    def __str__(self) -> str:
        when = f"{self.at:.1f} s {'of training ' * self.begun}"
        return f"{self.kind} at {when}(victim {self.pick:.2f}, for {self.lasts:.1f} s)"


@dataclass(frozen=True)
class Round:
    """All that a seed decides."""

    seed: int
    mode: Mode
    runs: int
    nodes: int
    procs_per_node: int
    steps: int
    pause: float
    queue: str
    requeues: int
    faults: tuple[Fault, ...] = field(default=())

    @property
    def world_size(self) -> int:
        return self.nodes * self.procs_per_node

    def words(self, journal: Any) -> list[str]:
        """Arguments of the program."""
        keys = ",".join(str(key) for key in range(1, self.runs + 1))
        return [
            "-m", "scheduler=slurm", f"key={keys}", f"journal={journal}", f"steps={self.steps}", f"pause={self.pause}",
            f"resources.nodes={self.nodes}", f"resources.procs_per_node={self.procs_per_node}",
            "resources.cpus_per_proc=1", "resources.gpus_per_proc=0", "resources.time_limit=20m",
            "rendezvous.timeout=60s", f"scheduler.queue={self.queue}", f"launch.max_requeues={self.requeues}",
            "hydra.sweep.dir=sweep", "hydra.sweep.subdir=${hydra.job.num}", *self.mode.words,
        ]  # fmt: skip


FAULTS = {  # name: how often
    "kill_rank": 3,
    "kill_supervisor": 2,
    "kill_script": 2,
    "kill_srun": 2,
    "kill_node": 3,
    "cut_link": 2,
    "restart_controller": 2,
    "stop_accounting": 1,
    "fill_tmp": 1,
    "scancel": 2,
    "requeue": 2,
    "preempt": 2,
    "suspend": 1,
    "kill_launcher": 2,
    "hang_up_launcher": 1,
    "stop_launcher": 1,
    "two_resumes": 2,
}


OF_JOBS = {"kill_rank", "kill_supervisor", "kill_script", "kill_srun", "requeue", "preempt", "suspend"}
"""Faults that hit nothing before a job runs."""


def drawn(seed: int) -> Round:
    """The round of a seed. Faults come while the first run trains, or soon after."""
    draw = random.Random(seed)
    (mode,) = draw.choices(MODES, [each.weight for each in MODES])
    number = draw.choice((1, 1, 2, 2, 3))
    kinds = draw.choices(list(FAULTS), list(FAULTS.values()), k=number)
    most = 0 if mode.name == "torchft" else draw.choice((0, 1, 3))
    if most == 0:  # SLURM refuses to requeue it
        kinds = ["scancel" if kind == "requeue" else kind for kind in kinds]
    steps, pause = draw.choice((20, 30, 40)), draw.choice((0.05, 0.1, 0.2))
    faults = []
    for kind in kinds:
        begun = kind in OF_JOBS or draw.random() < 0.6
        at = draw.uniform(0.0, 1.2 * steps * pause if begun else 6.0)
        faults.append(Fault(kind, at, begun, draw.random(), draw.uniform(0.5, 8.0)))
    return Round(
        seed=seed,
        mode=mode,
        runs=1 if mode.torch else draw.choice((1, 2, 2, 3)),
        nodes=2 if mode.torch else draw.choice((1, 2, 2, 2)),
        procs_per_node=1 if mode.torch else draw.choice((1, 1, 2)),
        steps=steps,
        pause=pause,
        queue="spot" if "preempt" in kinds else draw.choice(("gpu", "gpu", "spot")),
        requeues=most,
        faults=tuple(sorted(faults, key=lambda fault: (fault.begun, fault.at))),
    )
