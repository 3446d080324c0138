"""``hpc-hydra stacks RUN``: what the ranks of a running run are doing, grouped by equal stacks.

Must not know: files, schedulers, how stacks are obtained.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.cli import sweep_args
from hpc_hydra.cli.scan import UsageError

if TYPE_CHECKING:
    from hpc_hydra.sweep.status import RunView


def stacks(argv: Sequence[str]) -> int:
    """``hpc-hydra stacks``; returns the exit code: 1 if a rank does not answer."""
    parser = sweep_args.parser(
        "stacks",
        "Show what the ranks of a running run are doing: their Python stacks, equal ones once.",
        example="hpc-hydra stacks 3 --rank 1",
    )
    parser.add_argument("-r", "--rank", type=int, metavar="R", action="append", help="only this rank; may be repeated")
    parser.add_argument("-t", "--threads", action="store_true", help="all threads, not only the main one")
    parser.add_argument("--native", action="store_true", help="also C and C++ frames, by py-spy on the nodes")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="how long to wait: 10, with --native 60")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "stacks")
    wrong = next((rank for rank in options.rank or () if rank < 0), None)
    if wrong is not None:
        raise UsageError(f"{wrong} is not a rank", where="--rank", fix="--rank 0")
    sweep = sweep_args.open_records(where)
    view = _one(sweep_args.selected(sweep, runs), str(sweep.root))
    from hpc_hydra.sweep.stacks import look
    from hpc_hydra.ui import stacks as shown
    from hpc_hydra.ui import sweep_tables
    from hpc_hydra.ui.progress import complain, say

    seconds = (60.0 if options.native else 10.0) if options.wait is None else options.wait
    seen = look(view, options.rank or (), sweep=sweep.root, native=options.native, seconds=seconds)
    if options.json:
        print(sweep_tables.as_json({"run": view.run.num, **shown.data(seen)}))
    else:
        if seen.is_kept:
            say(
                f"run {view.run.num} is {view.word}; its ranks were last asked while it ran, and this was their answer:"
            )
        say("\n".join(shown.text(seen, threads=options.threads)))
        if not options.threads:
            again = shlex.join(["hpc-hydra", "stacks", str(view.run.num), str(sweep.root), "--threads"])
            complain(f"all threads: {again}")
        complain(f"the answers of the ranks: {seen.folder}")
    return int(bool(seen.silent))


def _one(views: Sequence[RunView], sweep: str) -> RunView:
    """Return the run, or the only one that is running. Raises `UsageError`."""
    running = [view for view in views if view.word == "running"]
    if len(views) == 1 or len(running) == 1:
        return running[0] if running else views[0]
    numbers = " ".join(str(view.run.num) for view in (running or views)[:20])
    what = f"choose one of the running runs {numbers}" if running else "no run is running"
    from hpc_hydra.sweep.store import command

    raise UsageError(
        what, where=sweep, fix=command(f"stacks {running[0].run.num}" if running else "status", Path(sweep))
    )
