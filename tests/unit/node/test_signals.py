"""Signals that reach a job's processes by several ways."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from hpc_hydra.processes import REPEAT, Signals


@pytest.fixture
def told() -> Iterator[tuple[Signals, Callable[[int, float], int | None]]]:
    """A process that hears signals, and what sends it one at a certain time."""
    now = [0.0]
    made = Signals(clock=lambda: now[0])

    def tell(signum: int, at: float) -> int | None:
        now[0] = at
        signal.raise_signal(signum)
        return made.wait(0)

    yield made, tell
    made.restore()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM])
def test_a_signal_that_is_repeated_at_once_is_one(
    told: tuple[Signals, Callable[[int, float], int | None]], signum: int
) -> None:
    """A scheduler's daemon signals all processes of a job, and some of them hand it on to others."""
    signals, tell = told
    assert [tell(signum, at) for at in (0, 0.001, 0.9, REPEAT, REPEAT + 0.5)] == [signum, None, None, signum, None]
    assert signals.seen == [signum, signum]


def test_what_kills_at_once_is_a_second_signal_and_no_other_of_the_same_end(
    told: tuple[Signals, Callable[[int, float], int | None]],
) -> None:
    signals, tell = told
    assert tell(signal.SIGHUP, 0) and tell(signal.SIGTERM, 0.1) and not signals.told_again  # as Flux cancels
    assert tell(signal.SIGTERM, 2.0) and signals.told_again
