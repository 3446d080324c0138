"""Every capability has a part of the suite, or another place that tries it."""

from __future__ import annotations

import re

from hpc_hydra.schedulers import capabilities
from hpc_hydra.schedulers.base import Scheduler
from tests.conformance.conftest import HERE

ELSEWHERE = {
    "SurvivesNodeLoss": "tests/scenarios/test_replicas.py: a node is lost under torchrun",
    "Packing": "tests/scenarios/test_packing*.py: whole sweeps on each scheduler that packs",
    "RequeuePacks": "tests/scenarios/test_packed_requeue.py",
    "LostHosts": "tests/cluster/test_ssh.py",
    "StepSignals": "tests/cluster/test_inside.py: it needs a terminal's signals",
    "HostList": "it has no methods; tests/cluster/test_ssh.py",
    "ContainerLaunch": "tests/unit/schedulers/test_container.py, tests/scenarios/test_containers.py",
    "InteractiveShell": "tests/unit/cli/test_shell.py: it needs a terminal",
    **dict.fromkeys(
        ["NodeExclusion", "NodeStates", "RequeueElsewhere", "ResubmissionElsewhere", "ClusterName"],
        "tests/scenarios/test_bad_nodes.py: whole runs on each scheduler",
    ),
    "SpareNodes": "tests/scenarios/test_preflight.py: whole runs on each scheduler",
    "BatchScripts": "tests/unit/cli/test_batch.py, tests/unit/cli/test_run_slurm.py",
}


def test_every_capability_has_a_part() -> None:
    names = {
        name for name, kind in vars(capabilities).items()
        if isinstance(kind, type) and issubclass(kind, Scheduler) and kind is not Scheduler
    }  # fmt: skip
    text = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    tried = {name for marked in re.findall(r"@declares\(([^)]+)\)", text) for name in marked.split(", ")}
    assert tried <= names
    assert names - tried == set(ELSEWHERE)
