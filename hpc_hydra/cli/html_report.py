"""``hpc-hydra report``: a sweep as one HTML file, or served while it runs.

Must not know: how the states of runs are determined (`sweep.status`), what the page shows (`ui.report`).
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.cli import sweep_args
from hpc_hydra.cli.scan import UsageError
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.records.files import write_bytes

if TYPE_CHECKING:
    from hpc_hydra.sweep.store import SweepRecords

SLOW = 300  # with more runs, reading them takes seconds


def report(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra report``; returns the exit code. Raises `HpcHydraError`."""
    parser = sweep_args.parser(
        "report", "Write a sweep as one HTML file: plots, table, timeline, logs.", example="hpc-hydra report --serve"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="output file (default: report.html in the sweep directory)"
    )
    parser.add_argument("--serve", action="store_true", help="serve it to a browser, with updates, until Ctrl-C")
    parser.add_argument("--port", type=int, metavar="PORT", help="of --serve (default: a free one)")
    parser.add_argument("--host", metavar="ADDRESS", help="of --serve (default: 127.0.0.1, this machine only)")
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "report")
    if options.serve and options.output:
        raise UsageError("writes no file", where="--serve", fix="--serve without -o, or -o FILE without --serve")
    if not options.serve and (options.port is not None or options.host is not None):
        raise UsageError(
            "are options of --serve", where="--port and --host", fix="hpc-hydra report --serve --port 8000"
        )
    from hpc_hydra.launcher.wait import configured
    from hpc_hydra.ui.report.data import ReportData, as_json
    from hpc_hydra.ui.report.page import page, plotly

    library = plotly()
    sweep = sweep_args.open_records(where)
    best = configured(sweep.root).best
    if options.serve:
        return _serve(sweep, runs, best, library, options.host or "127.0.0.1", options.port or 0)
    views = sweep_args.selected(sweep, runs)
    target = Path(options.output) if options.output else sweep.root / "report.html"
    data = ReportData(sweep, len(views), best)
    data.update(views)
    now = time.time()
    shown = {**data.head(now), **data.launch(), "made": now, "runs": data.rows()}
    text = page(as_json(shown), as_json(data.details()), library)
    try:
        _write(target, text.encode("utf-8", "replace"))
    except OSError as error:
        fix = "-o FILE, in a directory that you may write to"
        raise HpcHydraError(error.strerror or str(error), where=str(target), fix=fix) from error
    print(target)
    return 0


def _write(target: Path, page: bytes) -> None:
    """Replace a file atomically, behind a symbolic link too; write into a pipe or device. Raises `OSError`.

    Creates its directory.
    """
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        target.write_bytes(page)
    else:
        file = Path(os.path.realpath(target))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, page, mode=mode and stat.S_IMODE(mode))


def _serve(sweep: SweepRecords, runs: Sequence[str], best: str | None, library: str, host: str, port: int) -> int:
    from hpc_hydra.cli.report_server import serve
    from hpc_hydra.sweep.selection import select
    from hpc_hydra.ui.progress import say
    from hpc_hydra.ui.report.live import LiveReport

    report = LiveReport(sweep, lambda views: select(views, runs), best)
    if len(sweep.records) > SLOW:
        say(f"reading {len(sweep.records)} runs", to=sys.stderr)
    report.news(0)  # errors are reported here, not in the browser

    def ready(lines: Sequence[str]) -> None:
        print(lines[0], flush=True)
        for line in (*lines[1:], "Ctrl-C ends it"):
            say(line, to=sys.stderr)

    serve(report, library, host, port, ready)
    return 0
