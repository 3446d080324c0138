"""``hpc-hydra list``: the sweeps of this user, or those below some directories, the newest first.

Must not know: files, schedulers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_hydra.cli.scan import Option, UsageError, format_help, scan_among
from hpc_hydra.config.store import expanded

if TYPE_CHECKING:
    from hpc_hydra.sweep.listing import Summary

OPTIONS = (
    Option(("--help", "-h"), "flag", help="show this help"),
    Option(("--all",), "flag", help="list all sweeps, not only the newest 20"),
    Option(("--json",), "flag", help="machine-readable output"),
)
USAGE = "hpc-hydra list [DIR ...] [--all] [--json]"
ABOUT = """List sweeps, the newest first: when each was launched, its program, the states of its runs, its directory.
Without DIR: all sweeps that you launched, from any directory. With DIR: those in and below it."""
MANY = 20  # sweeps listed without --all


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra list``; returns the exit code. Raises `HpcHydraError`."""
    words, given = scan_among(OPTIONS, argv)
    if "help" in given:
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS, "example: hpc-hydra list multirun"))
        return 0
    folders = [expanded(word).absolute() for word in words]
    for word, folder in zip(words, folders, strict=True):
        if not folder.is_dir():
            what = "this is a file, not a directory" if folder.exists() else "there is no such directory"
            raise UsageError(what, where=word, fix="hpc-hydra list, for all your sweeps")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise UsageError("cannot be read: Permission denied", where=word, fix="hpc-hydra list, for all your sweeps")
    from hpc_hydra.sweep import listing
    from hpc_hydra.ui import sweep_tables
    from hpc_hydra.ui.progress import complain
    from hpc_hydra.ui.run_table import plural

    found, gone = listing.sweeps(folders)
    silent: set[str] = set()
    shown = list(listing.summaries(found if "all" in given else found[:MANY], silent))
    for why in sorted(silent):
        complain(f"{why}; the states of its runs are unknown")
    if "json" in given:
        print(sweep_tables.as_json([_data(each) for each in shown]))
        return 0
    if not shown:
        where = " or ".join(words)
        print(f"no sweeps in or below {where}" if words else "you have launched no sweeps", flush=True)
    else:
        sweep_tables.draw(sweep_tables.listing(shown))
    if len(shown) < len(found):
        complain(f"… and {len(found) - len(shown)} more: --all")
    if gone:
        complain(
            f"{plural(gone, 'sweep')} not listed: {'its directory is' if gone == 1 else 'their directories are'} gone"
        )
    return 0


def _data(summary: Summary) -> dict[str, object]:
    return {
        "sweep": str(summary.root),
        "launched": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(summary.launched))
        if summary.launched
        else None,
        "program": summary.program or None,
        "runs": sum(summary.states.values()),
        "states": dict(summary.states),
        "problem": summary.problem or None,
    }
