"""Runs the probe application through the real command line, on this machine and on the real SLURM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.awaiting import PATIENCE, await_true

APP = Path(__file__).parent / "app"
ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "train_examples" / "digits_ddp" / "train.py"
LIGHT = {"PYTHONPATH": f"{ROOT / 'tests' / 'chaos' / 'light'}{os.pathsep}{ROOT}"}  # by which a stand-in is torch


def train_digits(folder: Path, *words: str, runs: int = 1) -> list[dict[str, Any]]:
    """How the runs of a sweep of the digits example ended, which must end well."""
    done = subprocess.run(
        [sys.executable, str(DIGITS), "-m", *words, "launch.seed=7", f"hydra.sweep.dir={folder / 'sweep'}"], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / "sweep" / str(num) / "outcome.json").read_text()) for num in range(runs)]


@dataclass
class Result:
    code: int
    out: str
    err: str
    probes: dict[tuple[int, int], dict[str, Any]]  # (run, rank) → what it saw
    sweep: Path

    @property
    def text(self) -> str:
        return self.out + self.err

    def outcome(self, num: int) -> dict[str, Any]:
        return json.loads((self.sweep / str(num) / "outcome.json").read_text())


class Probe:
    """`run("-m", "x=1", env=…)` starts the probe as a user would, with an argument list and no shell."""

    def __init__(self, tmp_path: Path, scheduler: str) -> None:
        self.tmp, self.scheduler = tmp_path, scheduler
        self.out = tmp_path / "saw"
        self.sweep = tmp_path / "sweep"

    def argv(self, *args: str, app: Path = APP / "probe.py") -> list[str]:
        fixed = [f"out={self.out}", f"hydra.sweep.dir={self.sweep}", f"scheduler={self.scheduler}"]
        fixed += ["resources.gpus_per_proc=0"] if self.scheduler == "slurm" else []  # the test cluster's are not real
        return [sys.executable, str(app), "-m", *fixed, *args]

    def env(self, env: dict[str, str] | None = None, path: Path | None = None) -> dict[str, str]:
        new = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        if path:
            new["PATH"] = f"{path}{os.pathsep}{new['PATH']}"
        return new

    def run(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        path: Path | None = None,
        app: Path = APP / "probe.py",
        timeout: float = 280,
        cwd: Path | None = None,
    ) -> Result:
        done = forking.run(self.argv(*args, app=app), env=self.env(env, path), cwd=cwd or self.tmp, timeout=timeout)
        return Result(done.returncode, done.stdout, done.stderr, self.saw(), self.sweep)

    @contextmanager
    def started(self, *args: str, path: Path | None = None, argv: list[str] | None = None, cwd: Path | None = None):
        """The launcher as a process with all it prints in ``stdout``; it does not outlive a failing test."""
        with subprocess.Popen(
            argv or self.argv(*args), env=self.env(path=path), cwd=cwd or self.tmp, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as launcher:  # fmt: skip
            try:
                yield launcher
            finally:
                if launcher.poll() is None:
                    launcher.terminate()  # a launcher that is killed leaves its jobs to go on
                    with suppress(subprocess.TimeoutExpired):
                        launcher.communicate(timeout=200)
                    launcher.kill()

    def interrupt(self, *args: str, running: int) -> None:
        """Ctrl-C once so many ranks have said what they see: the launcher ends with 130."""
        with self.started(*args) as launcher:
            assert await_true(lambda: len(self.saw()) >= running)
            launcher.send_signal(signal.SIGINT)
            assert launcher.wait(PATIENCE) == 130

    def saw(self) -> dict[tuple[int, int], dict[str, Any]]:
        found = {}
        for file in sorted(self.out.glob("[0-9x]*.json")) if self.out.is_dir() else []:
            num, rank = file.name.split(".")[:2]
            found[(int(num), int(rank))] = json.loads(file.read_text())
        return found


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.cluster)])
def probe(request: pytest.FixtureRequest, tmp_path: Path) -> Probe:
    if request.param == "slurm":
        request.getfixturevalue("slurm_cluster")
    return Probe(tmp_path, request.param)


@pytest.fixture
def slurm_probe(slurm_cluster: Any, tmp_path: Path) -> Probe:
    return Probe(tmp_path, "slurm")


@pytest.fixture
def local_probe(tmp_path: Path) -> Probe:
    return Probe(tmp_path, "local")
