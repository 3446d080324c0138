"""Standard input of the launcher for rank 0 of its run."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.launcher.console_input import ConsoleInput
from hpc_hydra.records import console_input
from hpc_hydra.records.console_input import ACCEPTED, CHALLENGE, HELLO, PROOF
from hpc_hydra.records.layout import SweepPaths

RANK = """\
import signal, sys
from pathlib import Path
from hpc_hydra.node.rank.console_input import connect
connect(Path(sys.argv[1]))
if sys.argv[2] == "hang":
    print("connected", flush=True)
    signal.pause()
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
        timeout=200,
    )  # fmt: skip


def test_each_attempt_gets_what_is_typed_while_it_runs(tmp_path: Path, typed: int) -> None:
    file = SweepPaths(tmp_path).console_input
    file.parent.mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ConsoleInput(tmp_path):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        offered = console_input.read(tmp_path)
        assert offered is not None
        with socket.create_connection(("127.0.0.1", offered.port)) as stranger:
            stranger.sendall(b"x" * HELLO)
            assert len(stranger.recv(CHALLENGE, socket.MSG_WAITALL)) == CHALLENGE
            stranger.sendall(b"x" * PROOF)
            assert stranger.recv(1) == b""
        os.write(typed, b"one\n")
        assert rank(tmp_path, "line").stdout == "one\n"
        os.write(typed, b"two\nthree")
        os.close(typed)
        assert rank(tmp_path, "all").stdout == "two\nthree"
        assert rank(tmp_path, "all").stdout == ""
    assert not file.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1  # that of `typed`
    assert (rank(tmp_path, "all").stdout, rank(tmp_path, "all").stderr) == ("", "")


@pytest.mark.parametrize("speaks", ["accepts", "relays", "is silent"])
def test_a_listener_that_is_not_the_launcher_gets_no_token_and_no_rank(tmp_path: Path, typed: int, speaks: str) -> None:
    SweepPaths(tmp_path).meta.mkdir()
    heard = b""

    def listen(server: socket.socket, launcher: tuple[str, int]) -> None:
        nonlocal heard
        connection, _ = server.accept()
        with suppress(ConnectionError), connection, socket.create_connection(launcher) as behind:
            heard = connection.recv(HELLO, socket.MSG_WAITALL)
            if speaks == "accepts":
                connection.sendall(ACCEPTED * (CHALLENGE + 1) + b"evil\n")
            if speaks == "relays":
                behind.sendall(heard)
                connection.sendall(behind.recv(CHALLENGE, socket.MSG_WAITALL))
            while more := connection.recv(PROOF):
                heard += more
                behind.sendall(more)

    with ConsoleInput(tmp_path, "127.0.0.1"):
        offered = console_input.read(tmp_path)
        assert offered is not None and offered.addresses == ("127.0.0.1",)
        with socket.create_server(("127.0.0.2", offered.port)) as server:
            thread = threading.Thread(target=listen, args=(server, ("127.0.0.1", offered.port)))
            thread.start()
            addresses = ("127.0.0.2", *offered.addresses) if speaks == "is silent" else ("127.0.0.2",)
            console_input.offer(tmp_path, replace(offered, addresses=addresses))
            os.write(typed, b"typed\n")
            done = rank(tmp_path, "line")
            thread.join()
    assert len(heard) == HELLO and offered.token.encode() not in heard  # and no proof
    assert done.stdout == ("typed\n" if speaks == "is silent" else "")
    assert ("is not connected" in done.stderr) == (speaks != "is silent")


def test_neither_strangers_nor_a_rank_that_hangs_block_the_next_attempt(tmp_path: Path, typed: int) -> None:
    SweepPaths(tmp_path).meta.mkdir()
    text = "".join(f"line {number}\n" for number in range(1_000_000))  # more than connections hold

    def write() -> None:
        with open(typed, "w", closefd=False) as input:
            input.write(text)
        os.close(typed)

    with ConsoleInput(tmp_path), ExitStack() as stack:
        offered = console_input.read(tmp_path)
        assert offered is not None
        for number in range(100):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", offered.port)))
            stranger.sendall(b"x" * (number % 2))
        command = [sys.executable, "-c", RANK, str(tmp_path), "hang"]
        old = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        stack.callback(old.kill)
        assert old.stdout is not None and old.stdout.readline() == b"connected\n"
        writer = threading.Thread(target=write)
        writer.start()
        shown = rank(tmp_path, "all").stdout
        writer.join()
    assert shown and text.endswith(shown)


def test_what_a_killed_launcher_left_is_withdrawn(tmp_path: Path) -> None:
    SweepPaths(tmp_path).meta.mkdir()
    console_input.offer(tmp_path, console_input.Offer("gone", (), 1, "0"))
    with ConsoleInput(tmp_path):
        left = console_input.read(tmp_path)
        assert left is None or left.host != "gone"
    assert console_input.read(tmp_path) is None


def test_a_launcher_that_has_gone_leaves_the_input_empty(tmp_path: Path) -> None:
    SweepPaths(tmp_path).meta.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gone = console_input.Offer(socket.gethostname(), ("127.0.0.1", "::1"), port, "0" * 32)
    console_input.offer(tmp_path, gone)
    done = rank(tmp_path, "all")
    assert (done.returncode, done.stdout) == (0, "") and "is not connected" in done.stderr
