"""``hpc-hydra report``: a sweep as one HTML file, or served while it runs.

Must not know: how the states of runs are determined (`sweep.status`), what the page shows (`ui.report`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hpc_hydra.errors import HpcHydraError


def report(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra report``; returns the exit code. Raises `HpcHydraError`."""
    from hpc_hydra.cli import sweep_commands

    parser = sweep_commands._parser("report", "Write a sweep as one HTML file: plots, table, timeline, logs.")
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="output file (default: report.html in the sweep directory)"
    )
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_commands._split(options.words, "report")
    from hpc_hydra.launcher.wait import configured
    from hpc_hydra.ui.report.data import ReportData, as_json
    from hpc_hydra.ui.report.page import page, plotly

    library = plotly()
    sweep = sweep_commands._open(where)
    views = sweep_commands._views(sweep, runs)
    target = Path(options.output) if options.output else sweep.root / "report.html"
    data = ReportData(sweep, len(views), configured(sweep.root).best)
    data.update(views)
    text = page(as_json({**data.head(time.time()), "runs": data.rows()}), as_json(data.details()), library)
    try:
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise HpcHydraError(error.strerror or str(error), where=str(target), fix="-o FILE") from error
    print(target)
    return 0
