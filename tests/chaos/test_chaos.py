"""A few rounds of random faults, and those that have found a fault before: `make chaos` plays more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.__main__ import Series
from tests.chaos.seeds import FOUND

MINUTES = 1.5  # no further round begins afterwards
FEW = 6


@pytest.mark.needs("lanes")
@pytest.mark.timeout(600)
def test_runs_survive_random_faults() -> None:
    """The seeds are told, so that a round that fails can be repeated: `make chaos ROUNDS=1 SEED=…`."""
    import tempfile

    first = random.SystemRandom().randrange(1_000_000)
    seeds = [*(round_.seed for round_ in FOUND), *range(first, first + FEW)]
    with tempfile.TemporaryDirectory(prefix="hpc-hydra-chaos.", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        series = Series(seeds, lanes=2, base=Path(folder), minutes=MINUTES)
        reports = series.run()
        wrong = {report["seed"]: (report["wrong"], report["faults"]) for report in reports if report["wrong"]}
        logs = "".join(path.read_text()[-3000:] for path in Path(folder).glob("lane*/seed*/round.log"))
    assert not series.broken
    assert reports and not wrong, f"{wrong}\n{logs}"
