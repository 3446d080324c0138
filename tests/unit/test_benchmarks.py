"""The benchmarks of scale run, at their smallest size, and count what docs/scale.md says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def found(script: str, tmp_path: Path) -> dict[str, Any]:
    """Run a benchmark with ``--small``; return what it has found."""
    argv = [sys.executable, str(ROOT / "benchmarks" / script), "--small", "--json", str(tmp_path / "found.json")]
    argv += ["--work", str(tmp_path / "work")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    return result


def test_a_sweep_on_a_simulated_machine_is_one_array_and_few_files_until_it_runs(tmp_path: Path) -> None:
    sweep = found("scale_sweep.py", tmp_path)
    assert (sweep["commands"]["sbatch"], sweep["ended at once"]) == (1, 20)
    assert sweep["submitted, files"] <= 20
    assert [line["command"] for line in sweep["after"]] == ["status", "status", "results --json", "report"]


@pytest.mark.torch
def test_ranks_meet_in_each_way(tmp_path: Path) -> None:
    table = found("rendezvous.py", tmp_path)["table"]
    assert [(line["step"], line["ranks"]) for line in table] == [
        (step, ranks) for step in ("address", "store, with names", "store", "gloo") for ranks in (2, 4)
    ]


@pytest.mark.torch
@pytest.mark.needs("strace")
def test_a_rank_names_few_files_of_its_sweep(tmp_path: Path) -> None:
    [line] = found("start_metadata.py", tmp_path)["table"]
    counts = line["totals"]
    assert 0 < counts["sweep"] <= 120 < counts["python"], line
