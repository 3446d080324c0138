"""``hpc-hydra report``: a sweep as one HTML file that works offline. plotly.js comes from the package plotly.

Must not know: how the states of runs are determined (`sweep.status`), what an attempt is (`sweep.history`).
"""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import ConfigError, HpcHydraError

if TYPE_CHECKING:
    from hpc_hydra.sweep.status import RunView
    from hpc_hydra.sweep.store import Sweep

TEMPLATE = Path(__file__).with_name("report.html")
LONG = 60_000  # characters shown of a script, at most


def report(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra report``; returns the exit code. Raises `HpcHydraError`."""
    from hpc_hydra.cli import sweep_commands

    parser = sweep_commands._parser("report", "Write a sweep as one HTML file: table, plots, timeline, failures.")
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="output file (default: report.html in the sweep directory)"
    )
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_commands._split(options.words, "report")
    library = plotly()
    sweep = sweep_commands._open(where)
    views = sweep_commands._views(sweep, runs)
    target = Path(options.output) if options.output else sweep.root / "report.html"
    text = page(data(sweep, views), library)
    try:
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise HpcHydraError(error.strerror or str(error), where=str(target), fix="-o FILE") from error
    print(target)
    return 0


def plotly() -> str:
    """Return the text of plotly.js. Raises `ConfigError` if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "the report's plots need the package plotly", where="report", fix="pip install 'hpc-hydra[report]'"
        ) from None
    return str(get_plotlyjs())


def page(shown: dict[str, Any], library: str) -> str:
    """Return the HTML file. The library is compressed; the browser decompresses it."""
    packed = base64.b64encode(gzip.compress(library.encode(), 6)).decode()
    text = json.dumps(shown, separators=(",", ":"), default=str).replace("<", "\\u003c")
    before, _, rest = TEMPLATE.read_text(encoding="utf-8").partition("@DATA@")
    middle, _, after = rest.partition("@PLOTLY@")
    return "".join((before, text, middle, packed, after))


def data(sweep: Sweep, views: Sequence[RunView]) -> dict[str, Any]:
    """Return the data that the page shows."""
    from hpc_hydra.planning.types import to_json
    from hpc_hydra.sweep import history
    from hpc_hydra.ui import sweep_tables

    columns, rows = sweep_tables.results(views)
    state = columns.index("state")
    now = time.time()
    submitted, measured = history.submissions(sweep), history.measured(views)
    runs: list[dict[str, Any]] = [
        {
            "num": view.run.num,
            "state": view.word,
            "job": view.id,
            "script": view.job.partition(".")[0],
            "plan": sweep.records[view.run.num].plan,
            "tries": view.attempt,
            "seconds": view.seconds,
            "reason": view.reason,
            "world_size": view.run.plan.world_size,
            "dir": str(view.run.dir),
            "overrides": list(view.run.told),
            "attempts": history.attempts(view, submitted.get(view.run.num, ()), now),
            "tail": history.tail(view),
            "measured": measured.get(view.run.num, []),
        }
        for view in views
    ]
    return {
        "sweep": str(sweep.root),
        "made": now,
        "keys": columns[1:state],
        "values": columns[state + 1 :],
        "cells": [row[1:state] + row[state + 1 :] for row in rows],
        "runs": runs,
        "plans": {key: to_json(plan.redacted) for key, plan in sweep.plans.items()},
        "scripts": {key: _script(sweep, key) for key in sorted({run["script"] for run in runs if run["script"]})},
        "launched": launched(sweep),
    }


def _script(sweep: Sweep, key: str) -> str:
    with suppress(OSError):
        return sweep.paths.script(key).read_text(encoding="utf-8", errors="replace")[:LONG]
    return ""


def launched(sweep: Sweep) -> dict[str, Any]:
    """Return what was launched, where, and the record of code and packages if there is one."""
    program = sweep.program
    secrets = {name for plan in sweep.plans.values() for name in plan.secrets}
    started = [event for event in sweep.state.events if event["event"] == "started"]
    found: dict[str, Any] = {
        "program": " ".join((program.kind, program.target, *masked_words(program.argv, secrets))).strip(),
        "directory": program.cwd,
        "launches": [
            {
                "time": event.get("time"),
                "command": " ".join(map(str, event.get("argv", []))),
                "host": event.get("host"),
                "python": event.get("python"),
            }
            for event in started
        ],
    }
    for file in sorted(sweep.paths.meta.glob("*.json")):
        if file.name not in ("plans.json", "program.json") and file.stat().st_size < 200_000:
            with suppress(OSError, ValueError):
                found[file.stem] = json.loads(file.read_text(encoding="utf-8"))
    return found
