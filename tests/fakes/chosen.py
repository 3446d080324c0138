"""Which scheduler a test runs on: its stand-in, or with ``--scheduler=NAME`` the real one of this machine."""

from __future__ import annotations

from typing import Any

import pytest


def stand_in(request: pytest.FixtureRequest, name: str) -> Any:
    """Start the stand-in of a scheduler and return it; None if the real one is chosen.

    Tests of the other schedulers are left out only if the command line chooses one, never in `make test`.
    """
    chosen = request.config.getoption("--scheduler")
    if chosen not in (None, name):
        pytest.skip(f"--scheduler={chosen} is chosen")
    return None if chosen else request.getfixturevalue(f"fake_{name}")
