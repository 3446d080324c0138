"""Prints the failed tests of some pytest caches that `make test` tries once more, alone, when all others have ended.

`python -m tests.again CACHE...` prints nothing and exits with 1 if one of them may not be tried again, or if there are
too many: then something is broken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

REASONS = {
    "tests/scenarios/": "real jobs, whose time limits and grace periods run in real time, beside other workers",
    "tests/cluster/": "all workers share one SLURM cluster, which they fill",
    "tests/conformance/": "stand-in schedulers enforce time limits in real time",
    "tests/unit/cli/": "commands, launchers and runs are real processes, which race with others for two cores",
    "tests/unit/launcher/": "as those of the command line",
    "tests/unit/node/": "ranks, agents and their signals are real processes, with grace periods in real time",
    "tests/unit/schedulers/": "queues of this machine and of ssh run real processes",
    "tests/unit/test_docs.py": "whole pages of commands, each with a limit of minutes",
    "tests/examples/": "trainings of several processes, with timeouts of torch.distributed, on two cores",
}
MOST = 3


def failed(cache: Path) -> list[str]:
    """Node ids of the tests that failed last."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def main(caches: list[str]) -> int:
    found = [test for cache in caches for test in failed(Path(cache))]
    if not found or len(found) > MOST or not all(test.startswith(tuple(REASONS)) for test in found):
        return 1
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
