"""A disk that takes no more during a run is named, with the path, wherever anything can still be written or said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_hydra.records.collect import collect
from hpc_hydra.records.last_words import IO_ERROR
from hpc_hydra.schedulers.job import JobStatus, State

from .conftest import ATTEMPT, Frozen

Freeze = Callable[..., Frozen]
FILL = """
def fill():
    size = 65536
    with open(run / "ballast", "ab", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
import subprocess
run = Path(os.environ["HPC_HYDRA_SWEEP"]) / "0"
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own in the place of the run's directory."""
    run = tmp_path / "sweep" / "0"
    run.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(run)], check=True)
    yield run
    while subprocess.run(["umount", "-l", str(run)], capture_output=True, check=False).returncode == 0:
        pass


@pytest.mark.needs("mounts")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("fill(); return 0.5", "the disk is full"),
        ("fill(); os._exit(3)", "the disk is full"),
        ("fill(); print('x' * 100_000)", "the disk is full"),
        ("subprocess.run(['mount', '-t', 'tmpfs', '-o', 'ro', 'none', str(run)], check=True)", "read-only"),
    ],
    ids=["returns", "exits", "prints", "read-only"],
)
def test_a_disk_that_takes_no_more_is_named(freeze: Freeze, small: Path, body: str, words: str) -> None:
    frozen = freeze(body, outside=FILL)
    with frozen.spawn() as spawn:
        out, _ = spawn.communicate(timeout=180)
    assert words in out and str(small) in out
    done = frozen.finish(spawn.returncode)
    assert done.returncode not in (0, None) and words in done.stderr and str(small) in done.stderr
    says = JobStatus(State.FAILED, "FAILED", done.returncode)
    found = collect(frozen.paths, 0, None, status=says, world_size=1)
    assert found.status == "failed" and str(small) in str(found.reason), found
    if words != "read-only":  # where nothing can be written, the job's own output is all there is
        assert words in str(found.reason)


@pytest.mark.needs("mounts")
def test_a_disk_that_is_full_before_the_start_is_named(freeze: Freeze, small: Path) -> None:
    frozen = freeze()
    ballast = small / "ballast"
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], capture_output=True, check=False)
    with frozen.spawn() as spawn:
        out, _ = spawn.communicate(timeout=180)
    done = frozen.finish(spawn.returncode)
    assert "No space left on device" in out and str(small) in out and done.returncode == IO_ERROR
    found = collect(frozen.paths, 0, None, status=JobStatus(State.FAILED, "FAILED", IO_ERROR), world_size=1)
    assert str(small) in str(found.reason) and "disk full" in str(found.reason)
    assert not frozen.paths.rank_end(ATTEMPT, 0).exists()
