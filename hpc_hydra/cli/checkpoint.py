"""``hpc-hydra checkpoint``: ask running runs to save a checkpoint. Command line only.

The work is done in `hpc_hydra.sweep.checkpoint`. Must not know: files, schedulers.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_hydra.cli import sweep_args

if TYPE_CHECKING:
    from hpc_hydra.sweep.checkpoint import Asked

_STAGES = {
    "": "has not started its program yet, or its node does not see the request",
    "starting": "still imports, or has not reached hpc_hydra.distributed() yet",
    "joining": "waits in hpc_hydra.distributed() for the other ranks",
    "joined": "has not looked for requests since",
}
_WAIT = 20  # seconds until runs that have not answered are reported


def main(argv: Sequence[str]) -> int:
    """``hpc-hydra checkpoint``; returns the exit code: 1 if a run has not answered."""
    parser = sweep_args.parser(
        "checkpoint",
        "Ask running runs to save a checkpoint and go on; without RUNS all of the sweep.\n"
        "Their programs save when `dist.warned` or `dist.any_warned()` is true.",
        example="hpc-hydra checkpoint 0-4 --stop",
    )
    parser.add_argument("--stop", action="store_true", help="to save and end; `hpc-hydra resume` continues them")
    parser.add_argument(
        "--wait",
        metavar="TIME",
        default=f"{_WAIT}s",
        help=f"report runs without an answer after TIME (default: {_WAIT}s)",
    )
    options = parser.parse_intermixed_args(argv)
    from hpc_hydra.planning.units import seconds

    limit = seconds(options.wait, "--wait", bare=False) or _WAIT
    runs, where = sweep_args.split(options.words, "checkpoint")
    sweep = sweep_args.open_records(where)
    views = sweep_args.selected(sweep, runs)
    from hpc_hydra.sweep import checkpoint
    from hpc_hydra.ui.progress import complain, say
    from hpc_hydra.ui.run_table import numbers

    say(f"sweep: {sweep.root}")
    running, waiting = checkpoint.divide(views, limit)
    if waiting:
        say(f"not asked, because no rank has begun: {numbers(view.run for view in waiting)}")
    if not running:
        say("nothing to ask: none of these runs is running")
        return 0
    asked = checkpoint.ask(running, stop=options.stop)
    what = "end" if options.stop else "go on"
    say(f"asked to save and {what}: {numbers(view.run for view in running)}")
    for run in checkpoint.follow(asked, limit):
        say(f"run {run.view.run.num} {_did(run)}")
    saving = [run.view.run for run in asked if run.word == "seen" and not run.stop]
    if saving:
        say(f"not finished saving after {options.wait}: {numbers(saving)}")
    silent = [run for run in asked if run.word == "asked"]
    for stage, where in _STAGES.items():
        if same := [run.view.run for run in silent if run.stage == stage]:
            complain(f"no answer after {options.wait}: {numbers(same)}: rank 0 {where}")
    if silent:
        complain("the request stays: a program answers when it next reads `dist.warned` or calls `dist.any_warned()`")
    if options.stop and len(silent) < len(asked):
        say(f"to continue, when they have ended: hpc-hydra resume {shlex.quote(str(sweep.root))}")
    return 1 if silent else 0


def _did(run: Asked) -> str:
    """Describe the answer of a run."""
    if run.word == "seen":
        return "has seen the request: it saves and ends" if run.stop else "has seen the request and is saving"
    if run.word == "went on":
        return f"has saved and goes on ({run.seconds:.0f} s after it was asked)"
    return "has ended"
