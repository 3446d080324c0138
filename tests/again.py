"""Prints the failed tests of some pytest caches that `make test` tries once more, alone, when all others have ended.

`python -m tests.again CACHE...` prints nothing and exits with 1 if one of them may not be tried again, or if there are
too many: then something is broken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

REASONS = {
    "real jobs, whose time limits and grace periods run in real time, beside other workers": ("tests/scenarios",),
    "all workers share one SLURM cluster, which they fill": ("tests/cluster",),
    "stand-in schedulers run jobs and enforce time limits in real time": (
        "tests/conformance",
        "tests/unit/schedulers/test_flux.py",
    ),
    "trainings of several processes, with timeouts of torch.distributed, on two cores": ("tests/examples",),
    "whole pages of commands, each with a limit of minutes": ("tests/unit/test_docs.py",),
    "launchers and their runs are real processes, which get signals and lose terminals beside other workers": (
        "tests/unit/cli/test_closed_pipes.py",
        "tests/unit/cli/test_doctor.py",
        "tests/unit/cli/test_report.py",
        "tests/unit/cli/test_run.py",
        "tests/unit/cli/test_run_slurm.py",
        "tests/unit/cli/test_sweep_commands.py",
        "tests/unit/launcher/test_asking.py",
        "tests/unit/launcher/test_console_input.py",
        "tests/unit/launcher/test_console_output.py",
        "tests/unit/launcher/test_launch_function.py",
        "tests/unit/launcher/test_interrupt.py",
        "tests/unit/launcher/test_killed.py",
        "tests/unit/launcher/test_places.py",
        "tests/unit/launcher/test_report.py",
        "tests/unit/launcher/test_results.py",
        "tests/unit/launcher/test_single.py",
        "tests/unit/launcher/test_streams.py",
        "tests/unit/launcher/test_submit.py",
        "tests/unit/launcher/test_temporary.py",
    ),
    "ranks, agents and samplers are real processes, with grace periods and timeouts in real time": (
        "tests/unit/node/test_agent.py",
        "tests/unit/node/test_distributed.py",
        "tests/unit/node/test_early_warning.py",
        "tests/unit/node/test_forks.py",
        "tests/unit/node/test_full_disk.py",
        "tests/unit/node/test_hang.py",
        "tests/unit/node/test_ipv6.py",
        "tests/unit/node/test_monitor.py",
        "tests/unit/node/test_mpi.py",
        "tests/unit/node/test_names.py",
        "tests/unit/node/test_pack.py",
        "tests/unit/node/test_pack_again.py",
        "tests/unit/node/test_preflight.py",
        "tests/unit/node/test_program.py",
        "tests/unit/node/test_rank.py",
        "tests/unit/node/test_rendezvous.py",
        "tests/unit/node/test_replicas.py",
        "tests/unit/node/test_requests.py",
        "tests/unit/node/test_stacks.py",
        "tests/unit/node/test_tmrsh.py",
    ),
    "queues of this machine and of ssh run real processes, and poll commands with timeouts": (
        "tests/unit/schedulers/test_executor.py",
        "tests/unit/schedulers/test_local_queue.py",
        "tests/unit/schedulers/test_ssh_queue.py",
    ),
}
MOST = 3


def failed(cache: Path) -> list[str]:
    """Node ids of the tests that failed last."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def may_fail_by_chance(test: str) -> bool:
    """Whether a test of this node id is in a named file or folder."""
    file = Path(test.partition("::")[0])
    return any({file, *file.parents} & set(map(Path, paths)) for paths in REASONS.values())


def main(caches: list[str]) -> int:
    found = [test for cache in caches for test in failed(Path(cache))]
    if not found or len(found) > MOST or not all(map(may_fail_by_chance, found)):
        return 1
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
