"""Only a run that was warned or gave way, and says that it is not done, is queued again."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_hydra.records.requeue_policy import TIME_IS_UP, is_warned_early, why_again
from hpc_hydra.records.types import Outcome, RankEnd


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


def test_a_warning_that_ended_a_rank_before_it_could_hear_it_is_one() -> None:
    early = ended("cancelled", 138)
    assert is_warned_early(ended("failed", 138), 138, 10) and why_again(early, [], early=True) is not None
    by_itself = Outcome(0, "failed", 138, rank=0)
    for outcome, code, signum in ((early, 138, 12), (early, 1, 10), (early, 138, None), (by_itself, 138, 10)):
        assert not is_warned_early(outcome, code, signum)
