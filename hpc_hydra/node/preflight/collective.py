"""One rank of the preflight's all-reduce: ``python -m hpc_hydra.node preflight_rank FOLDER ROUND NODE``.

It runs in the environment of a rank of the run, with its backend and its GPU. Must not know: what is judged by it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra.node.doctor import all_reduce, link
from hpc_hydra.planning.types import to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.preflight import RankReport

ON_GPUS, ON_CPUS = 256, 16
"""MB of the largest all-reduce: large enough for the bandwidth to show, small enough for a second."""
_LINK = 16  # MB


def file_of(folder: Path, number: int, rank: int) -> Path:
    return folder / f"reduce_{number}.{rank}.json"


def rank(argv: Sequence[str]) -> int:
    """Meet the others, and measure. The report of the rank is written at each stage."""
    folder, number, node = Path(argv[0]), int(argv[1]), int(argv[2])
    own = int(os.environ["RANK"])
    report = RankReport(node, own, "ready")

    def tell(said: RankReport) -> RankReport:
        write_json(file_of(folder, number, own), to_json(said))
        return said

    try:
        import torch  # noqa: F401
    except ImportError as error:
        tell(replace(report, skipped=str(error)))
        return 0
    import hpc_hydra

    tell(report)
    try:
        with hpc_hydra.distributed() as dist:
            report = tell(replace(report, stage="joined"))
            size = ON_GPUS if dist.device.type != "cpu" else ON_CPUS
            last = all_reduce(dist, size)[-1]
            near = link(dist, _LINK)
            speed = last["gb_per_s"] if dist.world_size > 1 else None
            tell(
                replace(
                    report,
                    stage="done",
                    mb=last["mb"],
                    gb_per_s=speed,
                    link_gb_per_s=near["gb_per_s"] if near else None,
                )
            )
    except Exception as error:
        text = str(error).strip().splitlines()
        tell(replace(report, error=f"{type(error).__name__}: {text[0] if text else ''}"[:300]))
        return 1
    return 0
