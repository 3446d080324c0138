"""Python's garbage collector while a program loads: importing torch makes 200,000 objects, few of them garbage.

With Python's own thresholds a sixth of a rank's start goes into looking for it again and again. So the first threshold
is raised until the program is loaded, and then put back. The collector stays on: a program that makes much garbage
while it loads is still relieved of it, in larger steps. What the program itself sets stays set.

Must not know: what is loaded.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

LOADING = 1_000_000  # objects that come between two collections; torch and all that trains with it are fewer
_before: tuple[int, int, int] | None = None
_frozen = False


def raise_thresholds() -> None:
    """Collect seldom until `restore_thresholds`. A collector that is off, or has a higher threshold, is left alone."""
    global _before
    found = gc.get_threshold()
    if _before is None and gc.isenabled() and 0 < found[0] < LOADING:
        _before = found
        gc.set_threshold(LOADING, *found[1:])


def restore_thresholds() -> None:
    """Restore the thresholds from before `raise_thresholds`, unless somebody else has set them meanwhile.

    All objects become old ones, as they would after that many collections: later ones examine them seldom.
    """
    global _before
    if _before is None:
        return
    before, _before = _before, None
    if gc.get_threshold() != (LOADING, *before[1:]):
        return
    if not _frozen and gc.get_freeze_count() == 0:  # what somebody has frozen stays so
        gc.freeze()
        gc.unfreeze()  # into the oldest generation, without a look at each object
    gc.set_threshold(*before)


def freeze() -> None:
    """Before forks: the collector never looks at what is there, so that the memory pages stay shared."""
    global _frozen
    _frozen = True  # to count what is frozen takes a look at each
    gc.freeze()


@contextlib.contextmanager
def thresholds_raised(module: str) -> Iterator[None]:
    """Raise the thresholds for the import of a module, unless it is imported or they are raised already."""
    if _before is not None or module in sys.modules:
        yield
        return
    raise_thresholds()
    try:
        yield
    finally:
        restore_thresholds()
