"""Places that cannot be written or are gone: one clear error, exit code 2, nothing submitted (scenario B45)."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra.errors import SweepError
from hpc_hydra.records.files import on_disk
from hpc_hydra.records.manifest import Manifest

from .conftest import ROOT, App

RIGHTS = "-dac_override,-dac_read_search"  # what lets root pass every mode


def ordinary() -> list[str]:
    """A command's prefix under which file modes count, for root too."""
    if os.geteuid():
        return []
    prefix = ["setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}"]
    done = subprocess.run([*prefix, "test", "-w", "/dev"], check=False, capture_output=True)
    assert shutil.which("setpriv") and not done.stderr, done.stderr
    return prefix


def refused(app: App, *args: str, prefix: list[str] | None = None) -> str:
    """Start the application where `sbatch` notes that it was called; returns the error."""
    script = app.folder / "app.py"
    called = app.folder / "called"
    (app.folder / "bin").mkdir(exist_ok=True)
    sbatch = app.folder / "bin" / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ntouch {called}\necho 1\n")
    sbatch.chmod(0o755)
    path = f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*(prefix or []), sys.executable, str(script), *args],
        cwd=app.folder, env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Try:" in done.stderr, done.stderr
    assert not called.exists()
    return done.stderr


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    return folder


@pytest.fixture
def script(app: App) -> App:
    from .conftest import APP

    (app.folder / "app.py").write_text(APP)
    return app


@pytest.mark.parametrize(("key", "below"), [("hydra.sweep.dir", ""), ("launch.launch_dir", "/new/one")])
def test_a_directory_without_the_right_to_write(script: App, closed: Path, key: str, below: str) -> None:
    told = refused(script, "-m", "scheduler=slurm", f"{key}={closed}{below}", prefix=ordinary())
    assert str(closed) in told and "Permission denied" in told
    assert not list(closed.iterdir())


def test_a_script_that_cannot_be_written_where_it_was_asked_for(script: App, closed: Path) -> None:
    told = refused(script, "-m", "scheduler=slurm", f"launch.output_script={closed}/x.sh", prefix=ordinary())
    assert f"{closed}/" in told and "Permission denied" in told


def test_a_log_where_nobody_may_write(script: App, closed: Path) -> None:
    told = refused(script, "-m", "scheduler=slurm", f"logging.err={closed}/x.log", prefix=ordinary())
    assert f"hpc_hydra: logging.err: {closed}/x.log cannot be written: Permission denied\n" in told


@pytest.mark.parametrize(
    "words",
    [
        ["run", "logging.out={closed}/new/x.log", "--"],
        ["run", "launch.output_script={closed}/x.sh", "--"],
        ["torchrun", "--out", "{closed}", "-N", "1", "--"],
    ],
)
def test_files_of_an_attached_run_where_nobody_may_write(closed: Path, words: list[str]) -> None:
    words = [word.format(closed=closed) for word in words]
    start = [*ordinary(), sys.executable, "-m", "hpc_hydra.cli", words[0]]
    start += ["--local"] if words[0] == "torchrun" else ["scheduler=local"]
    done = subprocess.run(
        [*start, *words[1:], "sh", "-c", "echo started"], cwd=closed.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "started" not in done.stdout and "Traceback" not in done.stderr, done.stderr
    assert str(closed) in done.stderr and "cannot be written" in done.stderr and "Try:" in done.stderr
    assert not list(closed.iterdir())


def test_a_disk_without_room(script: App) -> None:
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]  # every write to a file fails
    assert "cannot be written: File too large" in refused(script, "-m", "scheduler=slurm", prefix=limited)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_what_the_system_says_is_told_with_the_place(number: int, tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=os.strerror(number)) as caught, on_disk(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "x"))
    assert caught.value.where == str(tmp_path / "x") and caught.value.exit_code == 2


def test_a_manifest_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / ".hpc_hydra" / "manifest.jsonl").mkdir(parents=True)
    with pytest.raises(SweepError, match=r"manifest\.jsonl: cannot be written"):
        Manifest(tmp_path).detached()


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    start = ["sh", "-c", f'mkdir {shlex.quote(str(gone))}; cd {gone}; rmdir {gone}; exec "$@"', "sh"]
    run = [*start, sys.executable, "-m", "hpc_hydra.cli", "run", "scheduler=slurm", "--", "true"]
    done = subprocess.run(
        run, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and "current directory has been deleted" in done.stderr, done.stderr


def test_launches_of_one_second_have_directories_of_their_own(app: App) -> None:
    words = ["-m", "scheduler=slurm", "resources.gpus_per_proc=0", "x=1", "launch.setup_only=true"]
    for pattern, names in (("m/${now:%%S}", ["%S", "%S_1"]), ("n/here", ["here"])):  # the one is as a second is written
        for _ in range(2):
            done = app.start(*words, f"hydra.sweep.dir={pattern}")
            assert done.returncode == 0, done.stderr
        folder = app.folder / pattern[0]
        assert sorted(path.name for path in folder.iterdir()) == names
    assert "an earlier sweep was in" in done.stderr and ".hpc_hydra.1" in done.stderr
    assert "checkpoints) stay" in done.stderr and "another hydra.sweep.dir starts fresh" in done.stderr
    assert (app.folder / "m" / "%S_1" / "multirun.yaml").is_file()
    assert app.start(*words, "hydra.sweep.dir=o/${now:%%S}", "resources.nodes=-1").returncode == 2
    assert not (app.folder / "o").exists()
