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


def rest() -> None:
    """Let the collector rest until `resume`. Nothing is changed where it is off, or rests more than that already."""
    global _before
    found = gc.get_threshold()
    if _before is None and gc.isenabled() and 0 < found[0] < LOADING:
        _before = found
        gc.set_threshold(LOADING, *found[1:])


def resume() -> None:
    """End `rest`: the thresholds are again what they were, unless somebody else has set them meanwhile.

    What is there by now counts as old, as it would after that many collections: later ones look at it seldom.
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
def resting(module: str) -> Iterator[None]:
    """`rest` for the import of a module; nothing is changed where that is there already, or within a longer rest."""
    if _before is not None or module in sys.modules:
        yield
        return
    rest()
    try:
        yield
    finally:
        resume()
