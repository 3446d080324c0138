"""A warning that comes before the program listens is noted by it, and none is lost on the way."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from hpc_hydra.node.modes.torchrun import agent_supervisor
from hpc_hydra.node.rank.overdue import Overdue
from hpc_hydra.processes import GRACE, Signals
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.rank_end import write_end
from hpc_hydra.records.types import RankEnd

from .conftest import ATTEMPT, await_true

Freeze = Any


def test_a_warning_before_the_fork_and_one_while_the_program_is_imported_reach_dist_warned(freeze: Freeze) -> None:
    """Rank 1 waits for rank 0 when the first comes; the program never asks for anything before its task function."""
    frozen = freeze("Path(f'warned.{RANK}').write_text(str(warned.warned()))", procs=2, warning="USR1@60",
                    outside="from hpc_hydra.node.rank import warning_signal as warned\n"
                            "if RANK == 0: os.kill(os.getpid(), 10)\n")  # fmt: skip
    with frozen.rank(1, 2) as last:
        await_true(frozen.paths.attempt(ATTEMPT).exists, timeout=200)
        last.send_signal(signal.SIGUSR1)
        with frozen.rank(0, 2) as first:
            out = first.communicate(timeout=200)[0] + last.communicate(timeout=200)[0]
    assert (first.returncode, last.returncode) == (0, 0), out
    assert [(frozen.root.parent / f"warned.{rank}").read_text() for rank in (0, 1)] == ["True", "True"]
    assert frozen.end(1)["warned"]


def test_a_command_meets_a_warning_as_programs_do(freeze: Freeze) -> None:
    """It is not held back from a program that was not started by us as Python, and not lost either."""
    program = Program("command", "", argv=("true",), cwd="/")
    frozen = freeze(procs=2, warning="USR1@60", program=program)
    with frozen.rank(1, 2) as last:
        await_true(frozen.paths.attempt(ATTEMPT).exists, timeout=200)
        last.send_signal(signal.SIGUSR1)
        with frozen.rank(0, 2) as first:
            first.communicate(timeout=200), last.communicate(timeout=200)
    assert (first.returncode, last.returncode) == (0, 138)
    assert frozen.end(1)["warned"] and frozen.end(1)["told_to_stop"]


def test_a_warning_while_the_interpreter_ends_does_not_change_the_exit_code(freeze: Freeze) -> None:
    """Several processes pass it on: one of them may be late."""
    frozen = freeze(
        """
        class Late:
            def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1):
                kill(pid, number)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.of_the_test = Late()  # until the modules are taken apart
        sys.exit(75)
        """,
        warning="USR1@60",
    )
    code, outcome = frozen.launch()
    assert (code, outcome["exit_code"], frozen.end(0)["signal"]) == (75, 75, None), outcome


@pytest.fixture
def signals() -> Any:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield Signals()
    while signal.sigtimedwait({signal.SIGUSR1, signal.SIGUSR2}, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_what_came_before_a_child_is_handed_on_to_it_and_waits_there(signals: Signals) -> None:
    signal.raise_signal(signal.SIGUSR1)
    signals.pause(0)  # notes it
    signal.raise_signal(signal.SIGUSR2)  # not noted yet
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
    monkeypatch.setattr(agent_supervisor.os, "kill", lambda pid, signum: sent.append((pid, signum)))
    signals.seen += [signal.SIGUSR1, signal.SIGTERM]
    given: set[tuple[int, int]] = set()
    for workers in ([], [1, 2], [1, 2], [2, 3]):
        agent_supervisor.forward_warnings(signals, workers, given)
    assert sent == [(1, 10), (2, 10), (3, 10)]


def test_a_warned_rank_that_hangs_is_ended_once_another_has_saved() -> None:
    now, is_warned, saved, sent = [0.0], [False], [False], []
    overdue = Overdue(lambda: is_warned[0], lambda: saved[0], lambda: now[0])

    def until(seconds: float) -> list[tuple[float, int]]:
        while now[0] < seconds:
            overdue.left()
            signum = overdue.due()
            sent.extend([(now[0], int(signum))] if signum else [])
            now[0] += 1
        return sent

    saved[0] = True
    assert until(100) == [] and overdue.left() is None  # nobody has warned
    is_warned[0], saved[0] = True, False
    assert until(300) == [] and not overdue.signalled  # it may take what it needs
    saved[0] = True
    assert [number for _, number in until(390)] == [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL]
    assert 360 <= sent[0][0] <= 366 and sent[1][0] - sent[0][0] == GRACE and overdue.signalled


def test_the_end_of_a_rank_that_hangs_is_recorded_and_not_the_cause(freeze: Freeze) -> None:
    """With a program that does not end, as a supervisor that is not told to stop sees it."""
    body = "Path('here').touch()\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\ntime.sleep(600)"
    quick = "import hpc_hydra.node.rank.overdue as o; o.PATIENCE = o._LOOK = 0.1"
    frozen = freeze(body, procs=2, warning="USR1@60")
    with frozen.rank(0, 2, code=quick) as rank:
        await_true((frozen.root.parent / "here").exists, timeout=200)
        rank.send_signal(signal.SIGUSR1)
        write_end(frozen.paths.rank_end(ATTEMPT, 1), RankEnd(1, "x", 75, warned=True, ended=time.time()))
        rank.communicate(timeout=200)
    assert rank.returncode == 0
    found = frozen.end(0)
    assert (found["exit_code"], found["told_to_stop"], found["warned"]) == (143, True, True)
    frozen.finish(0)
    assert (frozen.outcome()["exit_code"], frozen.outcome()["rank"]) == (75, 1)
