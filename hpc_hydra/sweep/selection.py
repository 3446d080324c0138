"""Select runs of a sweep by number, state or override, and cancel runs.

Must not know: Hydra, any scheduler's commands.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_hydra.errors import HpcHydraError, SchedulerError, SweepError
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import is_packed, queue_id
from hpc_hydra.sweep.status import FAILED, WORDS, RunView, canceller, look
from hpc_hydra.sweep.store import SweepRecords
from hpc_hydra.sweep.succession import late

_ESCAPE = re.compile(r"\\(?=[\\()\[\]{}:=, \t])")  # of Hydra's sweeper; tables show values without it
_LONG, _SHOWN = 40, 6  # characters of a value, and values, in a message
_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def is_selection(word: str) -> bool:
    """Whether a word on the command line selects runs; otherwise it is a directory."""
    return bool(_NUMBERS.fullmatch(word)) or word in WORDS or ("=" in word and not Path(word).is_dir())


def select(views: Sequence[RunView], words: Sequence[str]) -> list[RunView]:
    """Return the runs that match any of ``words``: ``3``, ``0-4``, ``1,5``, ``failed``, ``lr=0.1``. No words: all runs.

    ``failed`` selects the runs that timed out or are lost, too; other states select the runs in that state.

    Raises:
        SweepError: a word matches no run.
    """
    if not words:
        return list(views)
    chosen: set[int] = set()
    for word in words:
        chosen.update(_matching(views, word))
    return [view for view in views if view.run.num in chosen]


def _matching(views: Sequence[RunView], word: str) -> set[int]:
    known = {view.run.num for view in views}
    if _NUMBERS.fullmatch(word):
        found: set[int] = set()
        for part in word.split(","):
            first, _, last = part.partition("-")
            wanted = range(int(first), int(last or first) + 1)
            if not wanted:
                raise SweepError(f"{part} counts backwards", where=word, fix=f"{last}-{first}")
            if not {wanted.start, wanted.stop - 1} <= known:
                every = f"{min(known)}-{max(known)}" if len(known) > 1 else "".join(map(str, known))
                are = f": the runs are {every}" if len(known) > 1 else ""
                raise SweepError(f"there is no run {part}{are}", where=word, fix=every or None)
            found.update(wanted)
        return found & known
    if word in WORDS:
        states = FAILED if word == "failed" else (word,)
        return {view.run.num for view in views if view.word in states}
    return _with_override(views, word)


def _with_override(views: Sequence[RunView], word: str) -> set[int]:
    """Return the runs with an override of this text, else of this value: ``lr=0.10`` finds ``optim.lr=0.1``."""
    key, wanted = _parts(word)
    having = [
        (view, at, text)
        for view in views
        for at, (name, text) in enumerate(map(_parts, view.run.overrides))
        if name == key or name.endswith(f".{key}")
    ]
    found = {view.run.num for view, _, text in having if _plain(text) == _plain(wanted)}
    if not found and having:
        values = (_value(wanted), wanted)  # the text: the shell has removed the quotes of a string
        found = {view.run.num for view, _, text in having if any(_same(_value(text), value) for value in values)}
    if not found:
        told = list(dict.fromkeys(_plain(_parts(view.run.told[at])[1]) for view, at, _ in having))
        shown = ", ".join(text if len(text) <= _LONG else f"{text[:_LONG]}…" for text in told[:_SHOWN])
        there = f": {key} is {shown}{', …' * (len(told) > _SHOWN)}" if told else ""
        raise SweepError(
            f"no run has the override {word}{there}",
            where="RUNS",
            fix="hpc-hydra status shows the overrides of all runs",
        )
    return found


def _parts(override: str) -> tuple[str, str]:
    """Return key and value of an override."""
    key, _, text = override.lstrip("+").partition("=")
    return key, text


def _plain(text: str) -> str:
    return _ESCAPE.sub("", text)


def _value(text: str) -> Any:
    """Return the value that Hydra reads from a text; the text if Hydra cannot read it."""
    from hpc_hydra.records.frozen_config import parse_override

    try:
        return parse_override(f"key={text}").value()
    except Exception:
        return text


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and not only a boolean and a number that Python takes for equal."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def cancel(sweep: SweepRecords, views: Sequence[RunView], *, all_runs: bool) -> list[str]:
    """Cancel the runs that are pending or running, with one call per scheduler.

    Returns:
        Messages about what was cancelled.

    Raises:
        SchedulerError: some runs could not be cancelled; the message names them.
    """
    done: list[str] = []
    errors: list[HpcHydraError] = []
    by_scheduler: dict[str, list[RunView]] = {}
    for view in views:
        if view.is_active and view.id in sweep.state.cancelled and not registry.has_queue(view.scheduler):
            whom = canceller(sweep.state, view.id)  # a second signal would kill it
            done.append(f"run {view.run.num} is being cancelled already ({whom})")
        elif view.is_active and view.id:
            by_scheduler.setdefault(view.scheduler, []).append(view)
    all_runs = all_runs or sweep.is_attached  # it has one run
    if all_runs and (launcher := _launcher_to_signal(sweep, by_scheduler)):
        os.kill(launcher, signal.SIGTERM)
        done.append(f"signalled the launcher (process {launcher}) to cancel all runs and exit")
        for name in [name for name in by_scheduler if not registry.has_queue(name)]:
            del by_scheduler[name]
    elif sweep.is_attached and any(view.is_active and not view.id for view in views):
        host, pid = sweep.launcher["host"], sweep.launcher["pid"]
        raise SchedulerError(
            "the run waits for its allocation, and only its console knows the job",
            where=str(sweep.root),
            fix=f"Ctrl-C at its console, or on {host}: kill {pid}",
        )
    for scheduler, active in by_scheduler.items():
        ids = [view.id for view in active]
        try:
            whole = _cancellable_in_queue(sweep, active, views if all_runs else None)
            if not registry.has_queue(scheduler):  # the call below waits for the end of the runs
                Manifest(sweep.root).cancelled([view.id for view in active if view.word == "running"])
            if whole:
                submitter = sweep.job_control(scheduler)
                submitter.cancel(whole)
                jobs = {view.id: view.job for view in active}
                if more := late(submitter, sweep.root, [(jobs[id_], id_) for id_ in whole]):
                    submitter.cancel(more)
                    ids += more
            if registry.has_queue(scheduler):
                Manifest(sweep.root).cancelled(ids)
        except HpcHydraError as error:
            errors.append(error)
        else:
            before = [view for view in active if view.id in sweep.state.cancelled]
            new = [view for view in active if view.id not in sweep.state.cancelled]
            done += [f"cancelled on {scheduler}: {_numbers(new)}"] if new else []
            done += [f"cancelled before, and not ended yet: {_numbers(before)}; cancelled again"] if before else []
    if errors:
        raise SchedulerError("; ".join(e.what for e in errors), where=errors[0].where, fix=errors[0].fix)
    return done


def _numbers(views: Sequence[RunView]) -> str:
    return f"run{'s' if len(views) > 1 else ''} {' '.join(str(view.run.num) for view in views)}"


def _cancellable_in_queue(sweep: SweepRecords, views: Sequence[RunView], every: Sequence[RunView] | None) -> list[str]:
    """Return the ids to cancel in the queue.

    A packed run that shares its allocation with runs that continue is cancelled through a file that its allocation
    reads.

    Args:
        views: the runs to cancel.
        every: all runs of the sweep; None: read them if needed.
    """
    chosen = {view.id for view in views}
    if every is None and any(is_packed(id_) for id_ in chosen):
        every = look(sweep)
    kept = {queue_id(v.id) for v in every or () if v.is_active and is_packed(v.id) and v.id not in chosen}
    for view in views:
        if queue_id(view.id) in kept:
            with sweep.paths.cancelled(view.job.partition(".")[0]).open("a") as file:
                file.write(f"{view.run.num}\n")
    return [id_ for id_ in chosen if queue_id(id_) not in kept]


def _launcher_to_signal(sweep: SweepRecords, active: Mapping[str, Sequence[RunView]]) -> int | None:
    """Return the launcher's pid if only it can cancel some runs: local runs in its queue, jobs without an id yet."""
    launcher = sweep.launcher
    if launcher.get("host") != socket.gethostname() or not sweep.launcher_alive:
        return None
    unsubmitted = any(view.word in ("unsubmitted", "pending") and not view.id for view in look(sweep))
    local = any(not registry.has_queue(name) for name in active) and not sweep.is_attached
    return int(launcher["pid"]) if local or unsubmitted else None
