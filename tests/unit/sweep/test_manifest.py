"""The manifest finds every job, whenever the launcher that wrote it was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest, read_manifest
from hpc_hydra.records.types import Job


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    SweepPaths(tmp_path).meta.mkdir()
    manifest = Manifest(tmp_path)
    manifest.started(argv=["train.py", "-m"], host="login1", pid=1, runs=5)
    return manifest


JOB = Job("job0", "plan0", (0, 1, 2, 4), tag="tag-0")


def test_before_submission_a_job_is_known_by_its_tag(manifest: Manifest, tmp_path: Path) -> None:
    manifest.submitting(JOB, "slurm")
    state = read_manifest(tmp_path)
    assert state.pending == {"job0": JOB} and not state.jobs and state.scheduler == {"job0": "slurm"}


def test_after_submission_every_run_has_its_id(manifest: Manifest, tmp_path: Path) -> None:
    manifest.submitting(JOB, "slurm")
    manifest.submitted(Job("job0", "plan0", JOB.runs, "tag-0", ("7_0", "7_1", "7_2", "7_3")))
    state = read_manifest(tmp_path)
    assert not state.pending
    assert state.run_ids == {0: ("job0", "7_0"), 1: ("job0", "7_1"), 2: ("job0", "7_2"), 4: ("job0", "7_3")}


def test_a_refused_job_is_in_no_queue(manifest: Manifest, tmp_path: Path) -> None:
    manifest.submitting(JOB, "slurm")
    manifest.refused(JOB, "invalid account")
    state = read_manifest(tmp_path)
    assert not state.pending and not state.jobs and state.refused == {"job0": "invalid account"}


@pytest.mark.parametrize("cut", [2, 10, 60])
def test_a_torn_last_line_is_passed_over(manifest: Manifest, tmp_path: Path, cut: int) -> None:
    manifest.submitting(JOB, "slurm")
    whole = manifest.path.read_bytes()
    manifest.submitted(Job("job0", "plan0", JOB.runs, "tag-0", ("7_0",) * 4))
    written = manifest.path.read_bytes()
    manifest.path.write_bytes(written[: max(len(whole), len(written) - cut)])
    assert read_manifest(tmp_path).pending == {"job0": JOB}
    manifest.cancelled(["7_0"])  # what is appended later is read
    assert read_manifest(tmp_path).cancelled == {"7_0": ""}


def test_each_event_is_one_line_with_its_time(manifest: Manifest, tmp_path: Path) -> None:
    manifest.submitting(JOB, "slurm")
    manifest.detached()
    manifest.finished(failed=2)
    lines = [json.loads(line) for line in manifest.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "submitting", "detached", "finished"]
    assert all(line["time"] > 0 for line in lines)
    state = read_manifest(tmp_path)
    assert state.detached and state.finished


@pytest.mark.parametrize("id_", ["7", "7_0", "7+0"])
def test_who_cancelled_a_job_first_is_known_until_its_id_is_given_again(
    manifest: Manifest, tmp_path: Path, id_: str
) -> None:
    manifest.cancelled([id_])
    first = read_manifest(tmp_path)
    manifest.cancelled([id_, "8"], "SIGINT to the launcher")
    state = read_manifest(tmp_path)
    assert state.cancelled == {id_: "", "8": "SIGINT to the launcher"}
    assert state.cancelled_at[id_] == first.cancelled_at[id_]
    manifest.submitting(JOB, "slurm")
    manifest.submitted(Job("job0", "plan0", JOB.runs, "tag-0", (id_, "9", "10", "11")))
    state = read_manifest(tmp_path)
    assert state.cancelled == {"8": "SIGINT to the launcher"}
    assert list(state.cancelled_at) == ["8"]


def test_the_runs_of_a_large_job_take_little_room(manifest: Manifest, tmp_path: Path) -> None:
    manifest.submitting(Job("job1", "plan0", tuple(range(10_000)), "t"), "slurm")
    assert len(manifest.path.read_text()) < 1000
    assert read_manifest(tmp_path).pending["job1"].runs == tuple(range(10_000))


def test_a_sweep_without_a_manifest_has_no_jobs(tmp_path: Path) -> None:
    assert read_manifest(tmp_path).jobs == {}
