"""Standard input of the launcher for rank 0 of its run."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.launcher.console_input import ConsoleInput
from hpc_hydra.records import console_input
from hpc_hydra.records.layout import SweepPaths

RANK = """\
import sys
from pathlib import Path
from hpc_hydra.node.rank.console_input import connect
connect(Path(sys.argv[1]))
sys.stdout.write(sys.stdin.readline() if sys.argv[2] == "line" else sys.stdin.read())
"""


@pytest.fixture
def typed() -> Iterator[int]:
    """What is written here is this process's standard input."""
    before, (reader, writer) = os.dup(0), os.pipe()
    os.dup2(reader, 0)
    yield writer
    os.dup2(before, 0)


def rank(sweep: Path, how: str) -> subprocess.CompletedProcess[str]:
    """A rank that reads one line, or all."""
    return subprocess.run(
        [sys.executable, "-c", RANK, str(sweep), how], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def test_each_attempt_gets_what_is_typed_while_it_runs(tmp_path: Path, typed: int) -> None:
    file = SweepPaths(tmp_path).console_input
    file.parent.mkdir()
    with ConsoleInput(tmp_path):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        offered = console_input.read(tmp_path)
        assert offered is not None
        with socket.create_connection(("127.0.0.1", offered.port)) as stranger:
            stranger.sendall(b"x" * 40)
            assert stranger.recv(1) == b""
        os.write(typed, b"one\n")
        assert rank(tmp_path, "line").stdout == "one\n"
        os.write(typed, b"two\nthree")
        os.close(typed)
        assert rank(tmp_path, "all").stdout == "two\nthree"
        assert rank(tmp_path, "all").stdout == ""
    assert not file.exists()
    assert (rank(tmp_path, "all").stdout, rank(tmp_path, "all").stderr) == ("", "")


def test_a_launcher_that_has_gone_leaves_the_input_empty(tmp_path: Path) -> None:
    SweepPaths(tmp_path).meta.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gone = console_input.ConsoleInput(socket.gethostname(), ("127.0.0.1", "::1"), port, "0" * 32)
    console_input.offer(tmp_path, gone)
    done = rank(tmp_path, "all")
    assert (done.returncode, done.stdout) == (0, "") and "is not connected" in done.stderr
