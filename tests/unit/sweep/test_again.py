"""Only a run that was warned or gave way, and says that it is not done, is queued again."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_hydra.sweep.again import TIME_IS_UP, why_again
from hpc_hydra.sweep.types import Outcome, RankEnd


def ended(status: Any, code: int) -> Outcome:
    return Outcome(0, status, code, reason="so")


@pytest.mark.parametrize(
    ("outcome", "warned", "preempted", "why"),
    [
        (ended("completed", 0), True, True, None),
        (ended("failed", TIME_IS_UP), True, False, "warned that its time is up; so"),
        (ended("failed", TIME_IS_UP), False, False, None),
        (ended("failed", 1), True, True, None),  # an error of its own
        (ended("cancelled", 138), True, False, "warned that its time is up; so"),
        (ended("cancelled", 143), False, False, None),
        (ended("cancelled", 143), False, True, "preempted; so"),
        (ended("timeout", 143), True, False, "warned that its time is up; so"),
        (ended("lost", 1), True, False, None),
    ],
)
def test_why_a_run_is_queued_again(outcome: Outcome, warned: bool, preempted: bool, why: str | None) -> None:
    ends = [RankEnd(0, "a", outcome.exit_code), RankEnd(1, "b", outcome.exit_code, warned=warned)]
    assert why_again(outcome, ends, preempted=preempted) == why
