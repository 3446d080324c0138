"""A run that is warned, or preempted, saves what it has and is queued again, within `launch.max_requeues`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.awaiting import await_true

from .conftest import Probe

APP = """
import os, signal, sys, time
from pathlib import Path
import hydra

RANK = os.environ.get("RANK")

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    saved = Path(cfg.keep)
    if cfg.times <= len(list(saved.glob(f"{RANK}.*"))):
        return {"seed": os.environ["HPC_HYDRA_SEED"]}
    warned = []
    signal.signal(signal.SIGUSR1, lambda *_: warned.append(1))
    (saved / f"begun.{RANK}").touch()
    while not warned:
        time.sleep(0.05)
    (saved / f"begun.{RANK}").unlink()
    time.sleep(0.5 * int(RANK))  # the others take longer: they are allowed to finish
    attempt = os.environ["HPC_HYDRA_ATTEMPT"]
    (saved / f"{RANK}.{attempt}").write_text(f"{len(warned)} {os.environ['HPC_HYDRA_SEED']}")
    sys.exit(75)

if __name__ == "__main__":
    main()
"""
CONFIG = "defaults: [hpc, _self_]\nkeep: ???\ntimes: 1\nout: ''\n"
TWO = ("resources.nodes=2", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "launch.signal_before_end=2m")


@pytest.fixture
def saving(slurm_probe: Probe) -> tuple[Probe, Path, list[str]]:
    """A program that saves when it is warned, where it saves to, and its command line."""
    app, saved = slurm_probe.tmp / "app.py", slurm_probe.tmp / "saved"
    app.write_text(APP)
    (slurm_probe.tmp / "config.yaml").write_text(CONFIG)
    saved.mkdir()
    argv = slurm_probe.argv(f"keep={saved}", "resources.time_limit=20m", *TWO, app=app)
    return slurm_probe, saved, argv


def warn(saved: Path, probe: Probe, times: int = 1) -> None:
    """What SLURM does before the time limit: the signal, to the steps."""
    for _ in range(times):
        assert await_true(lambda: len(list(saved.glob("begun.*"))) == 2, 200)
        subprocess.run(["scancel", "--signal=USR1", job_of(probe)], check=True)
        assert await_true(lambda: not list(saved.glob("begun.*")))


def job_of(probe: Probe) -> str:
    lines = (probe.sweep / ".hpc_hydra" / "manifest.jsonl").read_text().splitlines()
    return next(str(event["ids"][0]) for event in map(json.loads, lines) if event["event"] == "submitted")


def attempts(probe: Probe) -> list[Path]:
    return sorted(path for path in (probe.sweep / "0" / "logs").iterdir() if path.is_dir())


def outcome(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "outcome.json").read_text())


def test_a_run_that_is_warned_saves_once_and_is_queued_again_until_requeues_are_used_up(
    saving: tuple[Probe, Path, list[str]],
) -> None:
    probe, saved, argv = saving
    with probe.started(argv=[*argv, "launch.max_requeues=1", "times=5"]) as launcher:
        warn(saved, probe, 2)
        text, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 1, text
    first, last = attempts(probe)
    ended = outcome(probe.sweep / "0")
    assert (ended["status"], ended["requeues"], ended["attempt"]) == ("failed", 1, last.name)
    assert outcome(first)["reason"].startswith("warned that its time is up; rank ")
    assert "used up launch.max_requeues=1" in ended["reason"], text
    told = [(saved / f"{rank}.{attempt.name}").read_text() for attempt in (first, last) for rank in (0, 1)]
    assert set(told) == {told[0]} and told[0].startswith("1 "), told  # once, on each rank, with the seed of the run
    said = next((probe.sweep / ".hpc_hydra" / "jobs").glob("job0.*.log")).read_text()
    assert "run 0 is queued again (1 of 1): warned" in said


def test_a_run_that_gives_way_is_queued_again_and_one_that_is_cancelled_is_not(
    saving: tuple[Probe, Path, list[str]],
) -> None:
    probe, saved, argv = saving
    one = ["resources.nodes=1", "resources.cpus_per_proc=8", "scheduler.queue=spot", "scheduler.nodelist=node04"]
    with probe.started(argv=[*argv, *one, "launch.max_requeues=1"]) as launcher:
        begun = saved / "begun.0"
        assert await_true(begun.exists)
        begun.unlink()
        other = ["--partition=debug", "--nodelist=node04", "--ntasks=1", "--cpus-per-task=8", "--mem=100", "true"]
        subprocess.run(["srun", *other], check=True, capture_output=True, timeout=120)
        assert await_true(begun.exists)
        subprocess.run(["scancel", job_of(probe)], check=True)
        text, _ = launcher.communicate(timeout=120)
    first, second = attempts(probe)
    assert outcome(first)["reason"] == "preempted; stopped by SIGTERM", text
    ended = outcome(probe.sweep / "0")
    assert (ended["status"], ended["attempt"]) == ("cancelled", second.name), text
