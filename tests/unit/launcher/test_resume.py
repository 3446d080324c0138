"""`resume` asks before it submits much, as the launcher does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra.errors import ConfigError, HpcHydraError, SweepError
from hpc_hydra.launcher.resume import Wanted, resume
from hpc_hydra.launcher.wait import configured
from hpc_hydra.records import console_input
from hpc_hydra.schedulers.base import SubmitError
from tests.fakes.commands import Fakes

from .conftest import ROOT, App


@pytest.fixture
def refused(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep that SLURM did not take: two runs of at most two node-hours together."""
    fakes = Fakes(tmp_path / "bin", monkeypatch)
    fakes.put("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    for name in ("squeue", "sacct", "scancel"):
        fakes.put(name, "exit 0")
    done = app.start(
        "-m", "scheduler=slurm", "resources.time_limit=1h", "launch.confirm_above=4", "x=1,2", "hydra.sweep.dir=sweep"
    )  # fmt: skip
    assert done.returncode == 2 and "invalid partition" in done.stderr, done.stderr
    return app.folder / "sweep"


def test_more_node_hours_than_confirm_above_are_asked_for_again(
    refused: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts = sorted(refused.glob(".hpc_hydra/jobs/*.sh"))
    with pytest.raises(ConfigError, match=r"at most 16\.0 node-hours, which is more than 4") as told:
        resume(refused, Wanted(overrides=("resources.time_limit=8h",)))
    assert told.value.where == "launch.confirm_above" and "--yes" in (told.value.fix or "")
    assert sorted(refused.glob(".hpc_hydra/jobs/*.sh")) == scripts  # nothing was submitted, or written
    assert "2 runs, at most 16.0 node-hours" in capfd.readouterr().out
    with pytest.raises(SubmitError, match="invalid partition"):
        resume(refused, Wanted(overrides=("resources.time_limit=8h", "launch.quiet=true"), yes=True))
    assert capfd.readouterr().out == ""


def test_the_console_of_a_killed_launcher_is_not_offered_to_a_new_attempt(refused: Path) -> None:
    console_input.offer(refused, console_input.Offer("gone", ("192.0.2.1",), 9, "token"))
    with pytest.raises(SubmitError):
        resume(refused, Wanted())
    assert console_input.read(refused) is None


def test_a_lock_that_says_nothing_is_nobodys_and_a_full_disk_leaves_none(refused: Path) -> None:
    lock = refused / ".hpc_hydra" / "resume.lock"
    for left in ("", '{"host": "x', "\0\0\0", "[]"):
        lock.write_text(left)
        with pytest.raises(SweepError, match=r"another resume is running\n"):  # it may be written this very moment
            resume(refused, Wanted())
        os.utime(lock, (0, 0))
        with pytest.raises(HpcHydraError) as told:
            resume(refused, Wanted())
        assert "another resume" not in str(told.value) and not lock.exists()
    limited = 'ulimit -f 0; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", limited, "sh", sys.executable, "-m", "hpc_hydra.cli", "resume", str(refused)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "cannot be written" in done.stderr and not lock.exists(), done.stderr


def test_what_the_sweep_was_told_is_kept_and_can_be_told_anew(tmp_path: Path) -> None:
    (tmp_path / "multirun.yaml").write_text("launch: {confirm_above: 4, best: min loss, quiet: true}")
    kept = configured(tmp_path)
    assert (kept.confirm_above, kept.best, kept.quiet) == (4.0, "min loss", False)
    new = configured(tmp_path, ("launch.confirm_above=null", "launch.best='max speed'", "launch.quiet=true"))
    assert (new.confirm_above, new.best, new.quiet) == (None, "max speed", True)
