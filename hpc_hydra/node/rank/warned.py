"""What `Dist.warned` returns: whether to save a checkpoint now, and why.

Combines the warning signal and the requests of `hpc-hydra checkpoint`. Must not know: torch, who sends them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from hpc_hydra import envvars
from hpc_hydra.node.rank import warning_signal
from hpc_hydra.node.rank.requests import STAGES, Page

Reason = Literal["time_limit", "preempted", "requested"]
_EARLY = 90.0  # seconds by which a scheduler may send the warning before its time (SLURM: 60)
_SIGNALS: dict[int, Reason] = {1: "preempted", 2: "time_limit"}  # wire format of `any_of`: max of all ranks wins


class Warned(int):
    """Whether this run is to save a checkpoint now: true or false, as the integers 1 and 0.

    Attributes:
        reason: ``time_limit``: it is near. ``preempted``: the scheduler warned long before it. ``requested``: by
            ``hpc-hydra checkpoint`` or a file STOP. None if false.
        stop: whether to exit with code 75 after saving. If false, go on.
        seconds_left: time until the time limit of the job; None if it is not known, as for a preempted job.
    """

    reason: Reason | None
    stop: bool
    seconds_left: float | None

    def __new__(cls, reason: Reason | None = None, *, stop: bool = False, seconds_left: float | None = None) -> Warned:
        made = super().__new__(cls, reason is not None)
        made.reason, made.stop, made.seconds_left = reason, stop, seconds_left
        return made

    def __repr__(self) -> str:
        if not self:
            return "Warned(False)"
        left = "" if self.seconds_left is None else f", seconds_left={self.seconds_left:.1f}"
        return f"Warned(True, reason={self.reason!r}, stop={self.stop}{left})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.reason, self.stop, self.seconds_left)


def _rebuilt(reason: Reason | None, stop: bool, seconds_left: float | None) -> Warned:
    return Warned(reason, stop=stop, seconds_left=seconds_left)


_opened: dict[str, Page | None] = {}  # by path; a forked child shares it
_handled = 0  # number of the last request to save that was returned


def own() -> Warned:
    """Return the warning of this rank. A request to save and go on is returned once."""
    signalled, stop, save = _state()
    _tell(max(stop, save))
    return _warned(signalled, stop, save, _left())


def enter(stage: str) -> None:
    """Note, for the supervisor's answers to requests, where the program is: one of `requests.STAGES`."""
    page = _page()
    if page is not None:
        page.stage = STAGES.index(stage)


def any_of(reduce: Callable[[Sequence[float]], Sequence[float]]) -> Warned:
    """Return the same warning on all ranks: that of any of them. A request to save and go on is returned once.

    Args:
        reduce: returns the maximum over all ranks, element by element; every rank calls it.
    """
    signalled, stop, save = _state()
    left = _left()
    mine = [
        next((number for number, reason in _SIGNALS.items() if reason == signalled), 0), stop, save,
        -math.inf if left is None else -left,
    ]  # fmt: skip
    number, stop_, save_, minus_left = reduce(mine)
    _tell(int(max(stop_, save_)))
    return _warned(_SIGNALS.get(int(number)), int(stop_), int(save_), None if minus_left == -math.inf else -minus_left)


def _state() -> tuple[Reason | None, int, int]:
    """Return why this rank was signalled, and the numbers of its open requests to stop and to save, or 0."""
    page = _page()
    if page is None:
        return _signalled(), 0, 0
    if page.seen > page.went_on and not page.stop:
        page.went_on = page.seen
    return _signalled(), page.stop, page.save if page.save > _handled else 0


def _tell(number: int) -> None:
    """Note that the program has read this request, and the earlier ones."""
    global _handled
    if number > _handled:
        _handled = number
    page = _page()
    if page is not None and number > page.seen:
        page.seen = number


def _warned(signalled: Reason | None, stop: int, save: int, left: float | None) -> Warned:
    if signalled is not None:
        return Warned(signalled, stop=True, seconds_left=None if signalled == "preempted" else left)
    return Warned("requested", stop=stop > 0, seconds_left=left) if stop or save else Warned()


def _signalled() -> Reason | None:
    """Return why the warning signal came, from the time at which it came."""
    came, end = warning_signal.came_at(), _number(envvars.TIME_LIMIT_AT)
    if came is None:
        return None
    early = end is not None and end - came > (_number(envvars.WARNING_BEFORE) or 0.0) + _EARLY
    return "preempted" if early else "time_limit"


def _left() -> float | None:
    end = _number(envvars.TIME_LIMIT_AT)
    return None if end is None else max(0.0, end - time.time())


def _number(variable: str) -> float | None:
    try:
        return float(os.environ[variable])
    except (KeyError, ValueError):
        return None


def _page() -> Page | None:
    path = os.environ.get(envvars.REQUESTS)
    if not path:
        return None
    if path not in _opened:
        _opened[path] = Page.open(path)
    return _opened[path]
