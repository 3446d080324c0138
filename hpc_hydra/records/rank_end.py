"""Writes how a rank ended, and tells the other ranks that one has failed or saved, by a file that each looks for.

A rank that looked into the records of all others would make this quadratic. Must not know: who ends, how the end is
judged.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpc_hydra.planning.types import to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.requests import fresh_stat
from hpc_hydra.records.requeue_policy import TIME_IS_UP
from hpc_hydra.records.types import RankEnd

_FAILED, _SAVED = "failed", "saved"


def write_end(path: Path, end: RankEnd) -> None:
    """Write the record of an end. Raises `OSError`; the other ranks are told nevertheless, if that is possible."""
    try:
        write_json(path, to_json(end))
    finally:
        for word, is_true in (
            (_FAILED, end.exit_code and not end.told_to_stop),
            (_SAVED, end.warned and end.exit_code == TIME_IS_UP),
        ):
            if is_true:
                with contextlib.suppress(OSError):  # the other ranks notice by themselves
                    _file(path.parent, word, end.round).touch()


def one_has_failed(folder: Path, round_: int) -> bool:
    """Whether a rank has failed by itself, given the directory of the attempt or replica group."""
    return fresh_stat(_file(folder, _FAILED, round_)) is not None


def one_has_saved(folder: Path, round_: int) -> bool:
    """Whether a rank has saved and exited after a warning."""
    return fresh_stat(_file(folder, _SAVED, round_)) is not None


def forget_ends(folder: Path) -> None:
    """Remove the ends of a replica group that is started again. Raises `OSError`."""
    for path in [*folder.glob("*.end.json"), *folder.glob(".failed.*"), *folder.glob(".saved.*")]:
        path.unlink(missing_ok=True)


def _file(folder: Path, word: str, round_: int) -> Path:
    return folder / f".{word}.{round_}"
