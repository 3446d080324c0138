"""A warning that comes before the program listens is noted by it, and none is lost on the way."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from hpc_hydra.node import agent
from hpc_hydra.node.processes import Signals
from hpc_hydra.sweep.frozen import Program

from .conftest import ATTEMPT, await_true

Freeze = Any


def test_a_warning_before_the_fork_and_one_while_the_program_is_imported_reach_dist_warned(freeze: Freeze) -> None:
    """Rank 1 waits for rank 0 when the first comes; the program never asks for anything before its task function."""
    frozen = freeze("Path(f'warned.{RANK}').write_text(str(warned.warned()))", procs=2, warning="USR1@60",
                    outside="from hpc_hydra.node import warned\nif RANK == 0: os.kill(os.getpid(), 10)\n")  # fmt: skip
    with frozen.rank(1, 2) as last:
        await_true(frozen.paths.attempt(ATTEMPT).exists, timeout=60)
        last.send_signal(signal.SIGUSR1)
        with frozen.rank(0, 2) as first:
            out = first.communicate(timeout=60)[0] + last.communicate(timeout=60)[0]
    assert (first.returncode, last.returncode) == (0, 0), out
    assert [(frozen.root.parent / f"warned.{rank}").read_text() for rank in (0, 1)] == ["True", "True"]
    assert frozen.end(1)["warned"]


def test_a_command_meets_a_warning_as_programs_do(freeze: Freeze) -> None:
    """It is not held back from a program that was not started by us as Python, and not lost either."""
    program = Program("command", "", argv=("true",), cwd="/")
    frozen = freeze(procs=2, warning="USR1@60", program=program)
    with frozen.rank(1, 2) as last:
        await_true(frozen.paths.attempt(ATTEMPT).exists, timeout=60)
        last.send_signal(signal.SIGUSR1)
        with frozen.rank(0, 2) as first:
            first.communicate(timeout=60), last.communicate(timeout=60)
    assert (first.returncode, last.returncode) == (0, 138)
    assert frozen.end(1)["warned"] and frozen.end(1)["told_to_stop"]


@pytest.fixture
def signals() -> Any:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield Signals()
    while signal.sigtimedwait({signal.SIGUSR1, signal.SIGUSR2}, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_what_came_before_a_child_is_handed_on_to_it_and_waits_there(signals: Signals) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    signals.pause(0)  # notes it
    os.kill(os.getpid(), signal.SIGUSR2)  # not noted yet
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        got = [signal.sigtimedwait({number}, 60) for number in (signal.SIGUSR1, signal.SIGUSR2)]
        os.write(writer, str([info.si_signo for info in got if info]).encode())
        os._exit(0)
    signals.hand_on(child)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"[10, 12]" and signals.seen == [10, 12]
    os.close(reader), os.close(writer)


def test_workers_that_start_after_a_warning_are_given_it_once(monkeypatch: Any, signals: Signals) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(agent.os, "kill", lambda pid, signum: sent.append((pid, signum)))
    signals.seen += [signal.SIGUSR1, signal.SIGTERM]
    given: set[tuple[int, int]] = set()
    for workers in ([], [1, 2], [1, 2], [2, 3]):
        agent.hand_on_warnings(signals, workers, given)
    assert sent == [(1, 10), (2, 10), (3, 10)]
