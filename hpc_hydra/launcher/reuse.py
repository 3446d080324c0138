"""Reuse a sweep directory: refuse it while its jobs are active, else move its records aside.

Must not know: how runs are composed or submitted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpc_hydra.errors import HpcHydraError, SweepError
from hpc_hydra.launcher import temporary
from hpc_hydra.records.batching import Run
from hpc_hydra.records.collect import attempts
from hpc_hydra.records.frozen_config import read_runs
from hpc_hydra.records.layout import RunPaths, SweepPaths
from hpc_hydra.records.manifest import read_manifest
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.base import State, Submitter, queue_id
from hpc_hydra.sweep import known, processes
from hpc_hydra.sweep.store import command
from hpc_hydra.ui.progress import complain

_locked: dict[Path, int] = {}  # directories locked by this process, which may use them again → file descriptor

# Directories of launches of this process that have not started → directories created for them
_claimed: dict[Path, list[Path]] = {}


def claim(root: Path) -> Path:
    """Create and return the first of ``root``, ``root_1``, ``root_2`` … that no other launch uses.

    For a directory named by a time stamp, not by the user. `take_over` uses it, `release` removes it. If it cannot be
    created, return ``root``; `take_over` then reports the error.
    """
    for number in range(10_000):
        candidate = root.with_name(f"{root.name}_{number}") if number else root
        created = [folder for folder in (candidate, *candidate.parents) if not folder.exists()]
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            SweepPaths(candidate).meta.mkdir()
        except FileExistsError:
            continue
        except OSError:
            break
        _claimed[candidate] = created
        return candidate
    return root


def release() -> None:
    """Remove the directories claimed for a launch that ended before it used them."""
    while _claimed:
        root, created = _claimed.popitem()
        for folder in (SweepPaths(root).meta, *created):
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def take_over(root: Path, runs: Sequence[Run], submitter: Callable[[str], Submitter], key: str) -> Iterator[None]:
    """Prepare the directory for a new sweep. Raises `SweepError`, without changes, if an old one is active.

    Unless the directory is temporary, `hpc-hydra list` shows the sweep once its records are written.

    Args:
        key: sets the directory; for errors.
    """
    paths = SweepPaths(root)
    _check_writable(root, key)
    _lock(root, key)
    if paths.manifest.exists():
        _refuse_active(root, submitter, key)
    if _claimed.pop(root, None) is None and paths.meta.exists():
        _put_aside(paths, runs, key)
    for run in runs:
        for path in (RunPaths(run.dir).outcome, RunPaths(run.dir).result):
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
    yield
    if not (root / temporary.OWNER).exists():
        known.remember(root)


def _put_aside(paths: SweepPaths, runs: Sequence[Run], key: str) -> None:
    """Move the records of the earlier sweep aside, with the outcomes of runs that ``runs`` replace, and print where."""
    number = next(n for n in range(1, 10_000) if not Path(f"{paths.meta}.{n}").exists())
    old = Path(f"{paths.meta}.{number}")
    paths.meta.rename(old)
    multirun = paths.root / "multirun.yaml"
    with suppress(FileNotFoundError):
        shutil.copy(multirun, old / multirun.name)
    for run in runs:
        for path in (RunPaths(run.dir).outcome, RunPaths(run.dir).result, RunPaths(run.dir).metrics):
            if path.is_file():
                kept = old / "runs" / str(run.num)
                kept.mkdir(parents=True, exist_ok=True)
                shutil.move(path, kept / path.name)
        for name in attempts(RunPaths(run.dir)):
            (kept := old / "runs" / str(run.num) / "logs").mkdir(parents=True, exist_ok=True)
            shutil.move(RunPaths(run.dir).attempt(name), kept / name)
    complain(
        f"note: an earlier sweep was in {paths.root}: its records, outcomes, results, metrics and logs are now in "
        f"{old}; your own files (checkpoints) stay, and the new runs find them (another {key} starts fresh)"
    )


def _check_writable(root: Path, key: str) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / ".hpc_hydra.probe"
        probe.touch()
        probe.unlink()
    except FileExistsError as error:
        raise SweepError(
            "this is a file, not a directory", where=str(root), fix=f"{key}=PATH of a directory"
        ) from error
    except OSError as error:
        raise SweepError(
            f"the sweep directory cannot be written: {error.strerror}",
            where=str(root),
            fix=f"{key}=PATH in a file system that login and compute nodes share",
        ) from error


def _lock(root: Path, key: str) -> None:
    """Lock the directory against other launchers until this process ends, when the kernel releases the lock."""
    real = root.resolve()
    if real in _locked:
        return
    # NFS and Lustre may support locks only on files opened for writing, not on directories
    for path, flags in ((real, os.O_RDONLY), (real / ".hpc_hydra.lock", os.O_RDWR | os.O_CREAT)):
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise SweepError(
                "another launcher is using this directory",
                where=str(root),
                fix=f"start again to get a new directory, or set another {key}",
            ) from error
        except OSError:
            os.close(descriptor)
            continue
        _locked[real] = descriptor
        return


def _refuse_active(root: Path, submitter: Callable[[str], Submitter], key: str) -> None:
    state = read_manifest(root)
    try:
        dirs = {record.num: record.dir for record in read_runs(root)}
    except (HpcHydraError, OSError):
        return
    open_ids: dict[str, list[str]] = {}
    for num, (job, id_) in state.run_ids.items():
        if num in dirs and not RunPaths(dirs[num]).outcome.exists():
            open_ids.setdefault(state.scheduler[job], []).append(id_)
    for scheduler, ids in open_ids.items():
        try:
            if registry.has_queue(scheduler):
                statuses = submitter(scheduler).poll(ids)
                alive = [id_ for id_, status in statuses.items() if status.state in (State.PENDING, State.RUNNING)]
            else:
                running = processes.local_runs(SweepPaths(root).jobs)
                alive = [id_ for id_ in ids if queue_id(id_) in running]
        except HpcHydraError:
            continue
        if alive:
            raise SweepError(
                f"jobs of an earlier sweep in this directory are still active: {' '.join(alive[:10])}",
                where=str(root),
                fix=f"{command('wait', root)}, or {command('cancel', root)}, or another {key}",
            )
