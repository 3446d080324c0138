"""How a rank ended: the table of `hpc_hydra.node.rank.verdict`, a case a row."""

from __future__ import annotations

import signal

import pytest

from hpc_hydra.node.rank.verdict import Observed, Verdict, supervisor_exit_code, verdict
from hpc_hydra.records.types import RankEnd

TERM, KILL, SEGV = 128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGSEGV


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # by itself
        (Observed(0, returned_before=True), Verdict(0)),
        (Observed(7), Verdict(7)),
        (Observed(75), Verdict(75)),
        (Observed(SEGV, signal.SIGSEGV), Verdict(SEGV, signal.SIGSEGV)),
        # after its function had returned: a failure at exit is one, unless the supervisor or a stop signal ended it
        (Observed(7, returned_before=True), Verdict(7)),
        (Observed(SEGV, signal.SIGSEGV, returned_before=True), Verdict(SEGV, signal.SIGSEGV)),
        (Observed(TERM, signal.SIGTERM, returned_before=True, ended_lingering=True), Verdict(0, left_processes=True)),
        (Observed(KILL, signal.SIGKILL, returned_before=True, stopped=True), Verdict(0, left_processes=True)),
        (Observed(0, returned_before=True, stopped=True), Verdict(0, told_to_stop=True)),
        # told to stop, or killed by a warning signal
        (
            Observed(TERM, signal.SIGTERM, signal_was_sent=True, stopped=True),
            Verdict(TERM, signal.SIGTERM, told_to_stop=True),
        ),
        (Observed(0, stopped=True), Verdict(0, told_to_stop=True)),
        (Observed(3, stopped=True), Verdict(3, told_to_stop=True)),
        (
            Observed(138, signal.SIGUSR1, signal_was_sent=True),
            Verdict(138, signal.SIGUSR1, told_to_stop=True),
        ),
        # an exception before the stop signal is the reason, whatever ended the process
        (Observed(1, stopped=True, raised_before=True), Verdict(1)),
        (Observed(TERM, signal.SIGTERM, signal_was_sent=True, stopped=True, raised_before=True), Verdict(1)),
        (
            Observed(KILL, signal.SIGKILL, stopped=True, raised_before=True),
            Verdict(KILL, signal.SIGKILL),
        ),
        # warned, and ended by the supervisor after another rank had saved
        (
            Observed(KILL, signal.SIGKILL, ended_overdue=True),
            Verdict(KILL, signal.SIGKILL, told_to_stop=True),
        ),
    ],
)
def test_the_end_of_a_program_is_judged_from_exit_code_and_signals(seen: Observed, expected: Verdict) -> None:
    assert verdict(seen) == expected


@pytest.mark.parametrize(
    ("end", "ended_overdue", "recorded", "expected"),
    [
        ({"exit_code": 0}, False, True, 0),
        ({"exit_code": 7}, False, True, 7),
        ({"exit_code": 75}, False, True, 75),
        ({"exit_code": 75, "warned": True}, False, True, 0),
        ({"exit_code": 75, "warned": True, "replica": 0}, False, True, 75),
        ({"exit_code": 7, "warned": True}, False, True, 7),
        ({"exit_code": KILL, "warned": True}, True, True, 0),
        ({"exit_code": 0}, False, False, 74),
        ({"exit_code": 1}, False, False, 74),
        ({"exit_code": 7}, False, False, 7),
    ],
)
def test_the_exit_code_of_a_supervisor_follows_from_the_end_of_its_rank(
    end: dict[str, int], ended_overdue: bool, recorded: bool, expected: int
) -> None:
    record = RankEnd(0, "n1", **end)
    assert supervisor_exit_code(record, ended_overdue=ended_overdue, recorded=recorded) == expected
