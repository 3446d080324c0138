"""``hpc-hydra status | logs | cancel | wait | resume | results``: command lines only.

The work is done in `hpc_hydra.sweep` (status, selection, logs, results) and `hpc_hydra.launcher` (wait, resume). Must
not know: files, schedulers.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.cli import sweep_args
from hpc_hydra.cli.scan import UsageError
from hpc_hydra.errors import SweepError
from hpc_hydra.ui import streams

if TYPE_CHECKING:
    from hpc_hydra.sweep.logs import Log
    from hpc_hydra.sweep.status import RunView
    from hpc_hydra.sweep.store import SweepRecords

ENDS = 40  # lines shown of each log, for several runs
WATCH = 5.0  # polling interval of `status --watch`, seconds


def status(argv: Sequence[str]) -> int:
    """``hpc-hydra status``; returns the exit code."""
    parser = sweep_args.parser(
        "status", "Show the runs of a sweep: states, jobs, reasons.", example="hpc-hydra status failed"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="update until all runs have ended")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--all", action="store_true", help="list every run of a large sweep")
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "status")
    sweep = sweep_args.open_records(where)
    views = sweep_args.selected(sweep, runs)
    from hpc_hydra.ui import sweep_tables

    if options.json:
        print(sweep_tables.as_json({"sweep": str(sweep.root), "runs": sweep_tables.status_data(views)}))
    elif options.watch:
        _watch(sweep, runs, views)
    else:
        every, head = options.all or bool(runs), _head(sweep)
        if runs and not views:
            sweep_tables.draw(sweep_tables.none_of(sweep_args.selected(sweep), runs, head=head))
            return 0
        sweep_tables.draw(sweep_tables.status(views, head=head, every=every, total=len(sweep.records)))
    return 0


def _head(sweep: SweepRecords) -> str:
    """Return the heading of the table of runs."""
    left = sweep.state.left
    if left:
        left = "\ndetached by Ctrl-C" if left == "SIGINT to the launcher" else f"\nits launcher left: {left}"
    moved = ""
    if (old := sweep.moved_from) is not None:
        merge = f"cp -a {shlex.quote(str(old))}/. {shlex.quote(str(sweep.root))}"
        moved = f"\nmoved while its jobs ran: they have written to {old}; once they have ended: {merge}"
    return f"sweep: {sweep.root}{left or ''}{moved}"


def _watch(sweep: SweepRecords, runs: Sequence[str], views: list[RunView]) -> None:
    """Show a live table in a terminal; elsewhere print the table after each change."""
    from rich.live import Live

    from hpc_hydra.sweep.recover import recover
    from hpc_hydra.sweep.selection import select
    from hpc_hydra.sweep.status import look
    from hpc_hydra.ui import sweep_tables

    console = streams.console(highlight=False)
    head = _head(sweep)
    numbers = {view.run.num for view in views}
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        shown: list[tuple[str, str]] = []
        while True:
            now = [(view.word, view.reason) for view in views]
            if live is not None:
                live.update(sweep_tables.live_status(views, head, console.size, len(sweep.records)), refresh=True)
            elif now != shown:
                sweep_tables.draw(sweep_tables.status(views, head=head, total=len(sweep.records)))
            shown = now
            waiting = any(view.word == "unsubmitted" for view in views) and sweep.launcher_alive
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
            sweep_tables.draw(sweep_tables.status(views, head=head, total=len(sweep.records)))


def logs(argv: Sequence[str]) -> int:
    """``hpc-hydra logs``; returns the exit code."""
    parser = sweep_args.parser(
        "logs",
        "Show output of a run's newest attempt: the log that explains a failure, else rank 0's.",
        example="hpc-hydra logs 3 --rank 1 --follow",
    )
    parser.add_argument("-r", "--rank", type=int, metavar="R", help="log of this rank")
    parser.add_argument("-a", "--all-ranks", action="store_true", help="logs of all ranks, one after the other")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new output until the run ends")
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "logs")
    if options.rank is not None and options.rank < 0:
        raise UsageError(f"{options.rank} is not a rank", where="--rank", fix="--rank 0")
    sweep = sweep_args.open_records(where)
    views = sweep_args.selected(sweep, runs)
    from hpc_hydra.sweep import logs as output
    from hpc_hydra.sweep.store import command

    if len(views) > 1 and runs and not options.follow:
        return _ends_of_logs(sweep, views, options)
    if len(views) != 1:
        numbers = " ".join(str(view.run.num) for view in views[:20])
        what = f"choose one run of {numbers}" if views else f"none of the runs is {' or '.join(runs)}"
        given = "" if options.rank is None else f" --rank {options.rank}"
        given += " --all-ranks" * options.all_ranks + " --follow" * options.follow
        fix = command(f"logs {views[0].run.num}{given}" if views else "status", sweep.root)
        raise UsageError(what, where=str(sweep.root), fix=fix)
    found = _await_logs(sweep, views[0], options)
    from hpc_hydra.ui.progress import complain

    if where is None:
        complain(f"sweep: {sweep.root}")
    if sys.stderr.isatty():
        complain(f"==> {_heading(views[0])}{f': {found[0].path}' if len(found) == 1 else ''} <==")
    if options.follow and views[0].word not in _ended():
        parts = output.follow(found, lambda: _has_ended(sweep, views[0].run.num))
    else:
        parts = output.read(found)
    for part in parts:
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
    if not any(map(output.has_output, found)):
        if options.follow:
            sweep.reload()
            views = sweep_args.selected(sweep, [str(views[0].run.num)])
        names = found[0].path.name if len(found) == 1 else "each of its logs"
        complain(f"run {views[0].run.num}: {names} is empty; {_state(views[0])}")
    return 0


def _state(view: RunView) -> str:
    """Return state and reason of a run, as `status` shows them: ``failed: rank 1 on n01: killed by SIGKILL``."""
    from hpc_hydra.ui.run_table import printable

    return printable(f"{view.word}: {view.reason}" if view.reason else view.word)


def _heading(view: RunView, common: Collection[str] = ()) -> str:
    """Return number and overrides of a run, without those in ``common``."""
    from hpc_hydra.ui.run_table import shown_overrides

    return f"run {view.run.num} {shown_overrides(view.run.told, common)}"


def _ends_of_logs(sweep: SweepRecords, views: Sequence[RunView], options: argparse.Namespace) -> int:
    """Print the last lines of the logs of several runs, each with the run's overrides as heading."""
    from hpc_hydra.records.files import last_lines
    from hpc_hydra.sweep import logs as output
    from hpc_hydra.ui.run_table import common_overrides, printable

    common = common_overrides([view.run for view in views])
    for view in views:
        heading = _heading(view, common)
        try:
            found = output.log_files(sweep, view, rank=options.rank, all_ranks=options.all_ranks)
        except SweepError as error:
            print(f"==> {heading} <==\n({error.what})\n")
            continue
        for log in found:
            rank = "" if log.rank is None or len(found) == 1 else f", rank {log.rank}"
            print(f"==> {heading}{rank}: {log.path} <==")
            shown = last_lines(log.path, ENDS) if output.has_output(log) else [f"(empty; {_state(view)})"]
            print("\n".join([*map(printable, shown), ""]))
    return 0


def _await_logs(sweep: SweepRecords, view: RunView, options: argparse.Namespace) -> list[Log]:
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
        (view,) = sweep_args.selected(sweep, [str(view.run.num)])


def _ended() -> Sequence[str]:
    from hpc_hydra.sweep.status import ENDED

    return ENDED


class _LastQuery:
    """Time of the last scheduler query about a run whose log is followed (monotonic clock)."""

    at = 0.0


def _has_ended(sweep: SweepRecords, num: int) -> bool:
    """Whether a run has ended. Checks its outcome file on every call, and the scheduler every `WATCH` seconds."""
    if sweep.run(num).dir.joinpath("outcome.json").exists():
        return True
    if time.monotonic() - _LastQuery.at < WATCH:
        return False
    _LastQuery.at = time.monotonic()
    sweep.reload()
    return not sweep_args.selected(sweep, [str(num)])[0].is_active


def wait(argv: Sequence[str]) -> int:
    """``hpc-hydra wait``; returns the launcher's exit code."""
    parser = sweep_args.parser(
        "wait",
        "Wait for all runs; exit code 1 if one failed. Interrupting it does not affect the runs.",
        example="hpc-hydra wait multirun/2026-11-29/14-05-14",
        runs=False,
    )
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "wait")
    if runs:
        raise UsageError(
            f"waits for all runs, cannot wait for {' '.join(runs)}",
            where="wait",
            fix=shlex.join(["hpc-hydra", "wait", *([where] if where else [])]),
        )
    from hpc_hydra.launcher import wait as waiting

    return waiting.wait(sweep_args.open_records(where))


def cancel(argv: Sequence[str]) -> int:
    """``hpc-hydra cancel``; returns the exit code."""
    parser = sweep_args.parser(
        "cancel", "Cancel pending and running runs; without RUNS all of the sweep.", example="hpc-hydra cancel 0-4"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask before cancelling the newest sweep")
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "cancel")
    sweep = sweep_args.open_records(where)
    views = sweep_args.selected(sweep, runs)
    from hpc_hydra.sweep import selection
    from hpc_hydra.ui.progress import say
    from hpc_hydra.ui.run_table import plural

    say(f"sweep: {sweep.root}")
    active = sum(view.is_active for view in views)
    if active and not options.words and not options.yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "without a terminal, the newest sweep is not cancelled unasked",
                where="cancel",
                fix=f"hpc-hydra cancel {shlex.quote(str(sweep.root))}, or --yes",
            )
        if not _agreed(f"cancel {plural(active, 'pending or running run')}?"):
            say("nothing was cancelled")
            return 130
    done = selection.cancel(sweep, views, all_runs=not runs)
    say("\n".join(done) if done else "nothing to cancel: none of these runs is pending or running")
    return 0


def _agreed(question: str) -> bool:
    """Ask for confirmation at the terminal."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def resume(argv: Sequence[str]) -> int:
    """``hpc-hydra resume``; returns the launcher's exit code, 0 with ``--bg``."""
    parser = sweep_args.parser(
        "resume",
        "Resubmit runs that failed, were cancelled, lost or never submitted; then wait.",
        example="hpc-hydra resume failed -- resources.time_limit=2h",
    )
    parser.usage = "hpc-hydra resume [RUNS] [SWEEP_DIR] [options] [-- overrides]"
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--failed", action="store_true", help="only those that failed, timed out or were lost")
    which.add_argument("--all", action="store_true", help="also cancelled and unsubmitted ones (default)")
    parser.add_argument("--bg", action="store_true", help="do not wait")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation (launch.confirm_above)")
    parser.add_argument(
        "--launcher-gone", action="store_true", help="assert that the launcher on another machine has ended"
    )
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_intermixed_args(words[:at])
    runs, where = sweep_args.split(options.words, "resume")
    from hpc_hydra.launcher.resume import Wanted
    from hpc_hydra.launcher.resume import resume as submit_again
    from hpc_hydra.sweep.store import find_sweep

    overrides = tuple(words[at + 1 :])
    misplaced = [word for word in overrides if word == "--" or _is_of_resume(parser, word)]
    others = [word for word in overrides if word not in misplaced]
    for word in others:
        if word.startswith("-") or not ("=" in word or word.startswith("~")):
            raise UsageError(f"{word!r} is not an override", where="resume", fix="resources.time_limit=2h")
    if misplaced:
        usable = [word for word in misplaced if word != "--"]
        raise UsageError(
            f"{misplaced[0]} is after --, where only overrides are allowed",
            where="resume",
            fix=shlex.join(["hpc-hydra", "resume", *words[:at], *usable, *(["--", *others] if others else [])]),
        )
    wanted = Wanted(tuple(runs), options.failed, overrides, options.bg, options.launcher_gone, options.yes)
    try:
        return submit_again(find_sweep(where), wanted)
    except SweepError as error:
        keys = [word for word in runs if _is_of_our_groups(word)]
        if error.where != "RUNS" or not keys or overrides:
            raise
        others = [word for word in options.words if word not in keys]
        meant = f"hpc-hydra resume {shlex.join([*others, '--', *keys])} to change it"
        raise SweepError(error.what, where=error.where, fix=f"{meant}; {error.fix}") from None


def _is_of_resume(parser: argparse.ArgumentParser, word: str) -> bool:
    """Whether a word after ``--`` belongs before it: an option, RUNS or a directory."""
    from hpc_hydra.sweep.selection import is_selection

    if word.startswith("-"):
        return word in parser.format_help().replace(",", " ").split()
    return "=" not in word and (is_selection(word) or Path(word).is_dir())


def _is_of_our_groups(word: str) -> bool:
    from hpc_hydra.config.schema import GROUPS

    return "=" in word and word.split("=")[0].split(".")[0] in GROUPS


def results(argv: Sequence[str]) -> int:
    """``hpc-hydra results``; returns the exit code."""
    parser = sweep_args.parser(
        "results", "Show the overrides, returned values and metrics of runs.", example="hpc-hydra results lr=0.1 --csv"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv",
        action="store_true",
        help="as comma-separated values, with job id, seconds, hosts, attempts and directory",
    )
    form.add_argument("--json", action="store_true", help="machine-readable output, with complete values")
    options = parser.parse_intermixed_args(argv)
    runs, where = sweep_args.split(options.words, "results")
    sweep = sweep_args.open_records(where)
    views = sweep_args.selected(sweep, runs)
    from hpc_hydra.ui import sweep_tables

    if options.json:
        print(sweep_tables.as_json(sweep_tables.results_data(views)))
        return 0
    if not views and not options.csv:
        sweep_tables.draw(sweep_tables.none_of(sweep_args.selected(sweep), runs, head=_head(sweep)))
        return 0
    logged = [view.final_metrics() for view in views]
    if options.csv:
        print(sweep_tables.as_csv(*sweep_tables.results(views, logged, details=True)), end="")
    else:
        sweep_tables.draw(sweep_tables.results_text(views, logged))
    from hpc_hydra.ui.progress import complain

    for note in sweep_tables.notes_on_good_ends(views):
        complain(f"note: {note}")
    return 0
