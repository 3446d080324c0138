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
from hpc_hydra.records.preflight import STAGES, RankReport, read_new

ON_GPUS, ON_CPUS = 256, 16
"""MB of the largest all-reduce: large enough for the bandwidth to show, small enough for a second."""
_LINK = 16  # MB


def tell(folder: Path, number: int, report: RankReport) -> RankReport:
    """Write the report of a rank about round ``number``; return it."""
    stage = "failed" if report.error else "skipped" if report.skipped else report.stage
    write_json(folder / f"reduce_{number}.{report.rank}.{stage}.json", to_json(report))
    return report


def told(folder: Path, number: int, known: dict[str, RankReport], rank: int | None = None) -> list[RankReport]:
    """Return the last report of each rank about round ``number``, or of one rank; ``known`` as in `read_new`."""
    latest: dict[int, RankReport] = {}
    for one in read_new(RankReport, folder, f"reduce_{number}.{'*' if rank is None else rank}.*.json", known):
        before = latest.setdefault(one.rank, one)
        if _progress(one) > _progress(before):
            latest[one.rank] = one
    return list(latest.values())


def _progress(report: RankReport) -> tuple[bool, int]:
    return bool(report.error or report.skipped), STAGES[report.stage]


def rank(argv: Sequence[str]) -> int:
    """Meet the others, and measure. The report of the rank is written at each stage."""
    folder, number, node = Path(argv[0]), int(argv[1]), int(argv[2])
    own = int(os.environ["RANK"])
    report = RankReport(node, own, "ready")

    try:
        import torch  # noqa: F401
    except ImportError as error:
        tell(folder, number, replace(report, skipped=str(error)))
        return 0
    import hpc_hydra

    tell(folder, number, report)
    try:
        with hpc_hydra.distributed() as dist:
            report = tell(folder, number, replace(report, stage="joined"))
            size = ON_GPUS if dist.device.type != "cpu" else ON_CPUS
            last = all_reduce(dist, size)[-1]
            near = link(dist, _LINK)
            speed = last["gb_per_s"] if dist.world_size > 1 else None
            tell(
                folder,
                number,
                replace(
                    report,
                    stage="done",
                    mb=last["mb"],
                    gb_per_s=speed,
                    link_gb_per_s=near["gb_per_s"] if near else None,
                ),
            )
    except Exception as error:
        text = str(error).strip().splitlines()
        tell(folder, number, replace(report, error=f"{type(error).__name__}: {text[0] if text else ''}"[:300]))
        return 1
    return 0
