"""Which runs of a sweep are meant, and ending those that wait or run.

Must not know: Hydra, any scheduler's commands.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_hydra.errors import HpcHydraError, SchedulerError, SweepError
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import in_queue, is_packed
from hpc_hydra.sweep.status import WORDS, RunView, look
from hpc_hydra.sweep.store import Sweep
from hpc_hydra.sweep.succession import late

_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def is_selection(word: str) -> bool:
    """Whether a word on the command line says which runs; else it is a directory."""
    return bool(_NUMBERS.fullmatch(word)) or word in WORDS or ("=" in word and not Path(word).is_dir())


def select(views: Sequence[RunView], words: Sequence[str]) -> list[RunView]:
    """The runs that any of ``words`` means: ``3``, ``0-4``, ``1,5``, ``failed``, ``lr=0.1``. All where there are none.

    Raises:
        SweepError: a word means no run.
    """
    if not words:
        return list(views)
    chosen: set[int] = set()
    for word in words:
        chosen.update(_meant(views, word))
    return [view for view in views if view.run.num in chosen]


def _meant(views: Sequence[RunView], word: str) -> set[int]:
    known = {view.run.num for view in views}
    if _NUMBERS.fullmatch(word):
        found: set[int] = set()
        for part in word.split(","):
            first, _, last = part.partition("-")
            wanted = range(int(first), int(last or first) + 1)
            absent = [num for num in (wanted.start, wanted.stop - 1) if num not in known]
            if absent or not wanted:
                shown = f"{min(known)}-{max(known)}" if known else "none"
                raise SweepError(f"there is no run {part}", where=word, fix=f"runs are {shown}")
            found.update(wanted)
        return found & known
    if word in WORDS:
        return {view.run.num for view in views if view.word == word}
    found = {view.run.num for view in views if any(_matches(o, word) for o in view.run.overrides)}
    if not found:
        raise SweepError(f"no run has the override {word}", where="RUNS", fix="hpc-hydra status shows their overrides")
    return found


def _matches(override: str, word: str) -> bool:
    """``lr=0.1`` is ``optim.lr=0.1`` too, and ``debug=true`` is Hydra's ``debug=True``."""
    (key, value), (wanted_key, wanted) = (text.lstrip("+").split("=", 1) for text in (override + "=", word + "="))
    same = value == wanted or (value.lower() == wanted.lower() and wanted.lower() in ("true=", "false=", "null="))
    return same and (key == wanted_key or key.endswith(f".{wanted_key}"))


def cancel(sweep: Sweep, views: Sequence[RunView], *, all_runs: bool) -> list[str]:
    """Cancel those that wait or run, one call a scheduler; what was done, in words.

    Raises:
        SchedulerError: some could not be cancelled; it says which.
    """
    done: list[str] = []
    errors: list[HpcHydraError] = []
    by_scheduler: dict[str, list[RunView]] = {}
    for view in views:
        if view.is_active and view.id:
            by_scheduler.setdefault(view.scheduler, []).append(view)
    if all_runs and (launcher := _launcher_to_end(sweep, by_scheduler)):
        os.kill(launcher, signal.SIGTERM)
        done.append(f"its launcher (process {launcher}) was told to cancel all and end")
        for name in [name for name in by_scheduler if not registry.has_queue(name)]:
            del by_scheduler[name]
    for scheduler, mine in by_scheduler.items():
        ids = [view.id for view in mine]
        try:
            whole = _outside_of_packs(sweep, mine, views if all_runs else None)
            if whole:
                submitter = sweep.submitter(scheduler)
                submitter.cancel(whole)
                jobs = {view.id: view.job for view in mine}
                if more := late(submitter, sweep.root, [(jobs[id_], id_) for id_ in whole]):
                    submitter.cancel(more)
                    ids += more
            Manifest(sweep.root).cancelled(ids)
        except HpcHydraError as error:
            errors.append(error)
        else:
            numbers = " ".join(str(view.run.num) for view in mine)
            done.append(f"cancelled on {scheduler}: run{'s' if len(mine) > 1 else ''} {numbers}")
    if errors:
        raise SchedulerError("; ".join(e.what for e in errors), where=errors[0].where, fix=errors[0].fix)
    return done


def _outside_of_packs(sweep: Sweep, mine: Sequence[RunView], every: Sequence[RunView] | None) -> list[str]:
    """Ids to be cancelled in the queue. Runs that share an allocation with others that are to go on are left to it."""
    chosen = {view.id for view in mine}
    if every is None and any(is_packed(id_) for id_ in chosen):
        every = look(sweep)
    kept = {in_queue(v.id) for v in every or () if v.is_active and is_packed(v.id) and v.id not in chosen}
    for view in mine:
        if in_queue(view.id) in kept:
            with sweep.paths.cancelled(view.job.partition(".")[0]).open("a") as file:
                file.write(f"{view.run.num}\n")
    return [id_ for id_ in chosen if in_queue(id_) not in kept]


def _launcher_to_end(sweep: Sweep, active: Mapping[str, Sequence[RunView]]) -> int | None:
    """The launcher, where only it can end what it has: runs that wait without a scheduler, jobs not submitted yet."""
    launcher = sweep.launcher
    if launcher.get("host") != socket.gethostname() or not sweep.launcher_lives:
        return None
    open_ones = any(view.word == "unsubmitted" for view in look(sweep))
    own = any(not registry.has_queue(name) for name in active)
    return int(launcher["pid"]) if own or open_ones else None
