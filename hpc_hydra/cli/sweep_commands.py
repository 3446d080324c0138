"""``hpc-hydra status | logs | cancel | wait | resume | results``: command lines only.

What they do is in `hpc_hydra.launcher`: inspect, choose, output, wait, resume. Must not know: files, schedulers.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.cli.scan import UsageError
from hpc_hydra.ui import streams

if TYPE_CHECKING:
    from hpc_hydra.sweep.logs import Log
    from hpc_hydra.sweep.status import RunView
    from hpc_hydra.sweep.store import Sweep

_RUNS = "RUNS: 3, 0-4, 1,5, a state (failed, lost …), or an override (lr=0.1); several words add up. "
_DIR = "SWEEP_DIR: where multirun.yaml is; without it, the newest sweep in or below the current directory."
ENDS = 40  # lines of each log, where those of several runs are shown
WATCH = 5.0  # seconds between two looks of `status --watch`


def _parser(name: str, about: str, *, runs: bool = True) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"hpc-hydra {name}", description=about, epilog=(_RUNS if runs else "") + _DIR)
    metavar = "[RUNS] [SWEEP_DIR]" if runs else "SWEEP_DIR"
    parser.add_argument("words", nargs="*", metavar=metavar, help="which runs of which sweep" if runs else "")
    return parser


def _split(words: Sequence[str], command: str) -> tuple[list[str], str | None]:
    """RUNS and the directory, in any order."""
    from hpc_hydra.sweep.selection import is_selection

    runs = [word for word in words if is_selection(word)]
    dirs = [word for word in words if not is_selection(word)]
    strange = next((word for word in dirs if not Path(word).expanduser().is_dir()), None)
    if strange is not None:
        from hpc_hydra.suggest import nearest
        from hpc_hydra.sweep.status import WORDS

        near = nearest(strange, WORDS)
        raise UsageError(
            f"{strange!r} is no directory, and means no runs"
            + (f"; did you mean {' or '.join(near)}?" if near else ""),
            where=command,
            fix="RUNS as 3, 0-4, 1,5, failed or lr=0.1, or the directory of a sweep",
        )
    if len(dirs) > 1:
        raise UsageError(
            f"{dirs[1]!r} is neither runs nor one directory",
            where=command,
            fix=f"hpc-hydra {command} [RUNS] [SWEEP_DIR]; RUNS as 3, 0-4, failed or lr=0.1",
        )
    return runs, dirs[0] if dirs else None


def _open(given: str | None) -> Sweep:
    from hpc_hydra.sweep.store import find_sweep, open_sweep

    return open_sweep(find_sweep(given))


def _views(sweep: Sweep, runs: Sequence[str] = ()) -> list[RunView]:
    from hpc_hydra.sweep.recover import recover
    from hpc_hydra.sweep.selection import select
    from hpc_hydra.sweep.status import look

    recover(sweep)
    return select(look(sweep), runs)


def status(argv: Sequence[str]) -> int:
    """``hpc-hydra status``; returns the exit code."""
    parser = _parser("status", "The runs of a sweep: how they are, and why.")
    parser.add_argument("--watch", "-w", action="store_true", help="again and again, until all have ended")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--all", action="store_true", help="each of many runs")
    options = parser.parse_intermixed_args(argv)
    runs, where = _split(options.words, "status")
    sweep = _open(where)
    views = _views(sweep, runs)
    from hpc_hydra.ui import sweep_tables

    if options.json:
        print(sweep_tables.as_json({"sweep": str(sweep.root), "runs": sweep_tables.status_data(views)}))
    elif options.watch:
        _watch(sweep, runs, views)
    else:
        every = options.all or bool(runs)
        sweep_tables.draw(sweep_tables.status(views, head=_head(sweep), every=every))
    return 0


def _head(sweep: Sweep) -> str:
    """What stands above the table of runs."""
    left = f"\nits launcher left: {sweep.state.left}" if sweep.state.left else ""
    return f"sweep: {sweep.root}{left}"


def _watch(sweep: Sweep, runs: Sequence[str], views: list[RunView]) -> None:
    """A live table in a terminal, elsewhere the table once more for each change."""
    from rich.live import Live

    from hpc_hydra.sweep.recover import recover
    from hpc_hydra.sweep.selection import select
    from hpc_hydra.sweep.status import look
    from hpc_hydra.ui import sweep_tables

    console = streams.console(highlight=False)
    head = _head(sweep)
    numbers = {view.run.num for view in views}
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        shown: list[tuple[str, str]] = []
        while True:
            now = [(view.word, view.reason) for view in views]
            if live is not None:
                live.update(sweep_tables.status(views, head=head), refresh=True)
            elif now != shown:
                sweep_tables.draw(sweep_tables.status(views, head=head))
            shown = now
            waiting = any(view.word == "unsubmitted" for view in views) and sweep.launcher_lives
            if not waiting and not any(view.is_active for view in views):
                return
            time.sleep(WATCH)
            sweep.reload()
            recover(sweep)
            every = look(sweep, known={view.run.num: view for view in views})
            views = [view for view in every if view.run.num in numbers] if runs else select(every, ())
    finally:
        if live is not None:
            live.stop()


def logs(argv: Sequence[str]) -> int:
    """``hpc-hydra logs``; returns the exit code."""
    parser = _parser("logs", "Output of a run's newest attempt: the log that shows why it failed, else rank 0.")
    parser.add_argument("--rank", "-r", type=int, metavar="R", help="of this rank")
    parser.add_argument("--all-ranks", "-a", action="store_true", help="of all ranks, one after the other")
    parser.add_argument("--follow", "-f", action="store_true", help="and what is added, until the run ends")
    options = parser.parse_intermixed_args(argv)
    runs, where = _split(options.words, "logs")
    if options.rank is not None and options.rank < 0:
        raise UsageError(f"{options.rank} is no rank", where="--rank", fix="--rank 0")
    sweep = _open(where)
    views = _views(sweep, runs)
    from hpc_hydra.sweep import logs as output

    if len(views) > 1 and runs and not options.follow:
        return _ends_of_logs(sweep, views, options)
    if len(views) != 1:
        numbers = " ".join(str(view.run.num) for view in views[:20]) or "none"
        raise UsageError(f"one run at a time, not: {numbers}", where="logs", fix="hpc-hydra logs RUN, one number")
    found = _await_logs(sweep, views[0], options)
    if options.follow and views[0].word not in _ended():
        parts = output.follow(found, lambda: _has_ended(sweep, views[0].run.num))
    else:
        parts = output.read(found)
    for part in parts:
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
    return 0


def _ends_of_logs(sweep: Sweep, views: Sequence[RunView], options: argparse.Namespace) -> int:
    """The last lines of the logs of several runs, each under its run's overrides."""
    from hpc_hydra.errors import SweepError
    from hpc_hydra.records.collect import last_lines
    from hpc_hydra.sweep import logs as output
    from hpc_hydra.ui.progress import common_overrides, printable, shown_overrides

    common = common_overrides([view.run for view in views])
    for view in views:
        named = f"run {view.run.num} {shown_overrides(view.run.told, common)}".strip()
        try:
            found = output.log_files(sweep, view, rank=options.rank, all_ranks=options.all_ranks)
        except SweepError as error:
            print(f"==> {named} <==\n({error.what})\n")
            continue
        for log in found:
            rank = "" if log.rank is None or len(found) == 1 else f", rank {log.rank}"
            print(f"==> {named}{rank}: {log.path} <==")
            print("\n".join([*map(printable, last_lines(log.path, ENDS)), ""]))
    return 0


def _await_logs(sweep: Sweep, view: RunView, options: argparse.Namespace) -> list[Log]:
    from hpc_hydra.errors import SweepError
    from hpc_hydra.sweep import logs as output

    while True:
        try:
            return output.log_files(sweep, view, rank=options.rank, all_ranks=options.all_ranks, follow=options.follow)
        except SweepError:
            in_future = options.rank is None or options.rank < view.run.plan.world_size
            if not (options.follow and view.is_active and in_future):
                raise
        time.sleep(1.0)
        sweep.reload()
        (view,) = _views(sweep, [str(view.run.num)])


def _ended() -> Sequence[str]:
    from hpc_hydra.sweep.status import ENDED

    return ENDED


class _Asked:
    """When the scheduler was asked the last time about a run whose log is followed."""

    at = 0.0


def _has_ended(sweep: Sweep, num: int) -> bool:
    """Whether a run has: its outcome is looked for each time, the scheduler asked now and then."""
    if sweep.run(num).dir.joinpath("outcome.json").exists():
        return True
    if time.monotonic() - _Asked.at < WATCH:
        return False
    _Asked.at = time.monotonic()
    sweep.reload()
    return not _views(sweep, [str(num)])[0].is_active


def wait(argv: Sequence[str]) -> int:
    """``hpc-hydra wait``; returns the launcher's exit code."""
    parser = _parser("wait", "Wait for all runs; exit code 1 where one failed. Leaving it changes nothing.", runs=False)
    options = parser.parse_intermixed_args(argv)
    runs, where = _split(options.words, "wait")
    if runs:
        raise UsageError(f"waits for all runs, not for {' '.join(runs)}", where="wait", fix="hpc-hydra wait SWEEP_DIR")
    from hpc_hydra.launcher import wait as waiting

    return waiting.wait(_open(where))


def cancel(argv: Sequence[str]) -> int:
    """``hpc-hydra cancel``; returns the exit code."""
    parser = _parser("cancel", "End runs that wait or run; all of the sweep without RUNS.")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before the newest sweep is cancelled")
    options = parser.parse_intermixed_args(argv)
    runs, where = _split(options.words, "cancel")
    sweep = _open(where)
    views = _views(sweep, runs)
    from hpc_hydra.sweep import selection
    from hpc_hydra.ui.progress import say

    say(f"sweep: {sweep.root}")
    going = sum(view.is_active for view in views)
    if going and not options.words and not options.yes and not _agreed(f"cancel its {going} runs that wait or run?"):
        say("nothing is cancelled")
        return 130
    done = selection.cancel(sweep, views, all_runs=not runs)
    say("\n".join(done) if done else "nothing to cancel: none of these runs waits or runs")
    return 0


def _agreed(question: str) -> bool:
    """Whether the person at the terminal says yes; where nobody is there, it goes without saying."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def resume(argv: Sequence[str]) -> int:
    """``hpc-hydra resume``; returns the launcher's exit code, 0 with ``--bg``."""
    parser = _parser("resume", "Submit again what failed, was cancelled or lost, or never was submitted; then wait.")
    parser.usage = "hpc-hydra resume [RUNS] [SWEEP_DIR] [--failed] [--bg] [--yes] [-- resources.time_limit=2h ...]"
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--failed", action="store_true", help="only those that failed, timed out or were lost")
    which.add_argument("--all", action="store_true", help="also cancelled and never submitted ones (the default)")
    parser.add_argument("--bg", action="store_true", help="do not wait")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask, whatever it costs (launch.confirm_above)")
    parser.add_argument(
        "--launcher-gone", action="store_true", help="the launcher on another machine does not run any more: I know"
    )
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_intermixed_args(words[:at])
    runs, where = _split(options.words, "resume")
    from hpc_hydra.launcher.resume import Wanted
    from hpc_hydra.launcher.resume import resume as submit_again
    from hpc_hydra.sweep.store import find_sweep

    overrides = tuple(words[at + 1 :])
    misplaced = [word for word in overrides if word.startswith("-")]
    if misplaced:
        raise UsageError(
            f"{misplaced[0]} is behind --, where only overrides are",
            where="resume",
            fix=f"hpc-hydra resume {shlex.join(misplaced)} -- "
            + (shlex.join(word for word in overrides if word not in misplaced) or "resources.time_limit=2h"),
        )
    wanted = Wanted(tuple(runs), options.failed, overrides, options.bg, options.launcher_gone, options.yes)
    return submit_again(find_sweep(where), wanted)


def results(argv: Sequence[str]) -> int:
    """``hpc-hydra results``; returns the exit code."""
    parser = _parser("results", "What the runs returned, beside what they were given.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="as comma-separated values")
    form.add_argument("--json", action="store_true", help="for machines, whole values")
    options = parser.parse_intermixed_args(argv)
    runs, where = _split(options.words, "results")
    views = _views(_open(where), runs)
    from hpc_hydra.ui import sweep_tables

    if options.json:
        print(sweep_tables.as_json(sweep_tables.results_data(views)))
        return 0
    columns, rows = sweep_tables.results(views)
    if options.csv:
        print(sweep_tables.as_csv(columns, rows), end="")
    else:
        sweep_tables.draw(sweep_tables.as_table(columns, rows))
    from hpc_hydra.ui.progress import complain

    for note in sweep_tables.notes_on_good_ends(views):
        complain(f"note: {note}")
    return 0
