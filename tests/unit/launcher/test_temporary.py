"""A directory whose process was killed goes at the next start, and no other one does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_hydra.launcher.temporary import OWNER, QUIET, make, remove

PREFIX = ".hpc_hydra-"


@pytest.fixture(scope="module")
def killed() -> dict[str, object]:
    """A process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    begun = time.time()
    process.kill()
    process.wait()
    return {"host": socket.gethostname(), "pid": process.pid, "time": begun}


def left(parent: Path, owner: object, *, age: float = 2 * QUIET, name: str = "left") -> Path:
    folder = parent / f"{PREFIX}{name}"
    (folder / ".hpc_hydra").mkdir(parents=True)
    if owner is not None:
        (folder / OWNER).write_text(owner if isinstance(owner, str) else json.dumps(owner))
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - age,) * 2)
    return folder


def test_temporary_directories_of_killed_processes_are_removed(tmp_path: Path, killed: dict[str, object]) -> None:
    folder = left(tmp_path, killed)
    made = make(tmp_path, PREFIX)
    assert sorted(tmp_path.iterdir()) == [made] and not folder.exists()
    assert json.loads((made / OWNER).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("why", ["lives", "elsewhere", "no owner", "torn", "odd", "just now", "another name"])
def test_temporary_directories_that_may_be_in_use_are_kept(tmp_path: Path, killed: dict[str, object], why: str) -> None:
    me = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
    owner = {"lives": me, "elsewhere": {**killed, "host": "n1"}, "no owner": None, "torn": "{", "odd": "[1]"}
    folder = left(tmp_path, owner.get(why, killed), age=QUIET / 2 if why == "just now" else 2 * QUIET)
    if why == "another name":
        folder = folder.rename(tmp_path / "hpc_hydra-mine")
    make(tmp_path, PREFIX)
    assert folder.is_dir() and (folder / ".hpc_hydra").is_dir()


def test_a_symbolic_link_among_temporary_directories_is_not_followed(tmp_path: Path, killed: dict[str, object]) -> None:
    precious = left(tmp_path / "precious", killed)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / f"{PREFIX}link").symlink_to(precious)
    make(tmp_path / "here", PREFIX)
    assert precious.is_dir()


def test_a_directory_into_which_ending_processes_write_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "deep"
    folder.mkdir(parents=True)
    writes = 'i=0; while : > "$0/$i"; do i=$((i + 1)); done'
    with subprocess.Popen(["timeout", "0.5", "sh", "-c", writes, folder], stderr=subprocess.DEVNULL):
        while not list(folder.iterdir()):
            time.sleep(0.001)
        remove(folder.parent)
    assert not folder.parent.exists()
