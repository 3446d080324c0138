"""A sweep that its launcher left, or lost, is completed by another process, each run executed once (B21, B24)."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.awaiting import PATIENCE, await_true
from tests.cluster.fixtures import Cluster

from .conftest import Probe

SMALL = ("resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")
APP = """
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    if cfg.resources.time_limit != "10m":
        raise TimeoutError(f"{cfg.resources.time_limit} is too little")
    return HydraConfig.get().job.num

if __name__ == "__main__":
    main()
"""


def hpc(probe: Probe, *argv: str, code: int | None = 0, path: Path | None = None) -> str:
    """Output of a command from another process, errors too."""
    words = [sys.executable, "-m", "hpc_hydra.cli", argv[0], str(probe.sweep), *argv[1:]]
    done = forking.run(words, env=probe.env(path=path), cwd=probe.tmp, timeout=180)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def runs(probe: Probe) -> list[dict[str, Any]]:
    return json.loads(hpc(probe, "status", "--json"))["runs"]


def states(probe: Probe) -> list[str]:
    return [run["state"] for run in runs(probe)]


def executions(probe: Probe) -> list[int]:
    """How many attempts each run has begun."""
    return [len([p for p in Path(run["dir"]).glob("logs/*") if p.is_dir()]) for run in runs(probe)]


def in_squeue(probe: Probe) -> list[tuple[str, str]]:
    """Script and state of each job of this sweep that SLURM has taken, element by element."""
    asked = ["squeue", "--noheader", "--me", "--states=all", "--array", "--format=%o|%T"]
    out = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = [line.rpartition("|") for line in out.splitlines() if line.startswith(f"{probe.sweep}/")]
    return [(script, state) for script, _, state in found]


def jobs_of(probe: Probe) -> Counter[str]:
    """Scripts of this sweep that the scheduler has taken, and how often."""
    return Counter(script for script, _ in in_squeue(probe))


@pytest.fixture
def slow_sbatch(tmp_path: Path) -> Path:
    """A folder for PATH whose sbatch outlives its launcher: $SLOW before or after the job is taken."""
    shim = tmp_path / "bin" / "sbatch"
    shim.parent.mkdir()
    real = shutil.which("sbatch")
    wait = f"touch {tmp_path}/there; while kill -0 $PPID 2>/dev/null; do sleep 0.1; done; sleep 1"
    shim.write_text(
        "#!/bin/sh\n"
        f'if [ "$SLOW" = before ]; then {wait}; exec {real} "$@"; fi\n'
        f'{real} "$@"; code=$?; {wait}; exit $code\n'
    )
    shim.chmod(0o755)
    return shim.parent


@pytest.mark.parametrize("slow", ["before", "after"])
def test_a_launcher_killed_during_submission_is_completed_by_resume(
    slurm_probe: Probe, slow_sbatch: Path, slow: str
) -> None:
    """Killed while sbatch has not yet, or has already, given the first of two jobs to the scheduler."""
    argv = slurm_probe.argv("resources.time_limit=5m,6m", *SMALL)
    env = slurm_probe.env({"SLOW": slow}, path=slow_sbatch)
    with subprocess.Popen(argv, env=env, cwd=slurm_probe.tmp, stdout=subprocess.DEVNULL) as launcher:
        assert await_true((slurm_probe.tmp / "there").exists)
        assert "still submitting" in hpc(slurm_probe, "resume", "1", code=2)
        launcher.kill()
    text = hpc(slurm_probe, "resume")
    assert "1 of 2 runs is submitted again" in text
    assert states(slurm_probe) == ["completed"] * 2
    assert executions(slurm_probe) == [1, 1]
    assert sorted(jobs_of(slurm_probe).values()) == [1, 1]
    assert "nothing to resume" in hpc(slurm_probe, "resume")


def test_a_job_whose_id_was_lost_is_found_by_status(slurm_probe: Probe, slow_sbatch: Path) -> None:
    argv = slurm_probe.argv("note=1,2", *SMALL)
    env = slurm_probe.env({"SLOW": "after"}, path=slow_sbatch)
    with subprocess.Popen(argv, env=env, cwd=slurm_probe.tmp, stdout=subprocess.DEVNULL) as launcher:
        assert await_true((slurm_probe.tmp / "there").exists)
        launcher.kill()
    assert all(run["job_id"] for run in runs(slurm_probe))
    assert '"submitted"' in (slurm_probe.sweep / ".hpc_hydra" / "manifest.jsonl").read_text()
    hpc(slurm_probe, "wait")
    assert executions(slurm_probe) == [1, 1]


def test_a_launcher_killed_after_submission_leaves_nothing_to_resume(slurm_probe: Probe) -> None:
    gate = slurm_probe.tmp / "gate"
    argv = slurm_probe.argv("note=1,2", f"gate={gate}", *SMALL)
    with subprocess.Popen(argv, env=slurm_probe.env(), cwd=slurm_probe.tmp, stdout=subprocess.DEVNULL) as launcher:
        assert await_true(lambda: len(slurm_probe.saw()) == 2)
        launcher.kill()
    assert states(slurm_probe) == ["running", "running"]
    assert "nothing to resume: runs 0 1 are in the queue" in hpc(slurm_probe, "resume")
    gate.touch()
    hpc(slurm_probe, "wait")
    assert states(slurm_probe) == ["completed", "completed"]
    assert executions(slurm_probe) == [1, 1]


def test_a_request_that_can_never_start_is_said_aloud(slurm_probe: Probe) -> None:
    """sbatch takes it; the queue would keep it for ever."""
    with slurm_probe.started("resources.nodes=9", *SMALL) as launcher:
        assert launcher.stdout is not None
        said = next(line for line in launcher.stdout if "will never start" in line)
        assert "(run 0), Partition" in said
        assert "will never start as it is: Partition" in runs(slurm_probe)[0]["reason"]
        hpc(slurm_probe, "cancel")
        assert launcher.wait(timeout=200) == 1


def test_a_launcher_that_is_interrupted_says_so_of_its_runs(local_probe: Probe) -> None:
    with local_probe.started("note=1,2", "sleep=300", "launch.on_interrupt=cancel", *SMALL) as launcher:
        assert await_true(lambda: local_probe.saw())
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=PATIENCE)
    assert re.search(r"run 0: cancelled, .*, SIGINT to the launcher, \d", out) and "unknown user" not in out, out


def test_cancelling_from_another_process(slurm_probe: Probe) -> None:
    """One run, then all; who waits for them is told, and a cancelled run can be submitted again."""
    assert slurm_probe.run("note=1,2", "sleep=300", "launch.bg=true", *SMALL).code == 0
    assert await_true(lambda: len(slurm_probe.saw()) == 2)
    assert "run 0" in hpc(slurm_probe, "cancel", "0")
    assert await_true(lambda: states(slurm_probe) == ["cancelled", "running"])
    waiter = subprocess.Popen(
        [sys.executable, "-m", "hpc_hydra.cli", "wait", str(slurm_probe.sweep)],
        env=slurm_probe.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    hpc(slurm_probe, "cancel")
    out, _ = waiter.communicate(timeout=200)
    assert waiter.returncode == 1 and "of 2 runs, 2 were cancelled" in out
    assert re.search(r"run 1: cancelled, .*, by hpc-hydra, \d", out) and "unknown user" not in out
    assert states(slurm_probe) == ["cancelled", "cancelled"]
    assert "nothing to cancel" in hpc(slurm_probe, "cancel")
    assert "2 of 2 runs are submitted again" in hpc(slurm_probe, "resume", "--bg")
    assert await_true(lambda: states(slurm_probe) == ["running", "running"])
    hpc(slurm_probe, "cancel")


def test_resume_gives_a_failed_run_more_time(slurm_probe: Probe) -> None:
    app = slurm_probe.tmp / "train.py"
    app.write_text(APP)
    (slurm_probe.tmp / "config.yaml").write_text("defaults: [hpc, _self_]\nout: ''\n")
    result = slurm_probe.run("resources.time_limit=5m,10m", *SMALL, app=app)
    assert result.code == 1 and states(slurm_probe) == ["failed", "completed"]
    hpc(slurm_probe, "resume", "--", "resources.time_limit=10m")
    assert states(slurm_probe) == ["completed", "completed"]
    assert executions(slurm_probe) == [2, 1]
    script = (slurm_probe.sweep / ".hpc_hydra" / "jobs" / f"{_newest_job(slurm_probe)}.sh").read_text()
    assert "--time=00:10:00" in script
    assert json.loads(hpc(slurm_probe, "results", "--json"))[0]["result"] == 0


def _newest_job(probe: Probe) -> str:
    lines = (probe.sweep / ".hpc_hydra" / "manifest.jsonl").read_text().splitlines()
    return [json.loads(line)["job"] for line in lines if '"submitting"' in line][-1]


@pytest.mark.cluster(alone=True)
def test_a_controller_restarted_in_mid_sweep_loses_nothing(slurm_probe: Probe, slurm_cluster: Cluster) -> None:
    """Two of four runs end while nobody answers; the others begin afterwards, and each is executed once."""
    gates = [slurm_probe.tmp / f"gate{num}" for num in range(4)]
    words = (f"gate={','.join(map(str, gates))}", "scheduler.array_parallelism=2", *SMALL)
    with slurm_probe.started(*words) as launcher:
        assert await_true(lambda: len(slurm_probe.saw()) == 2)
        with slurm_cluster.without_controller():
            for gate in gates[:2]:
                gate.touch()
            ended = "[01]/logs/*/rank_0.end.json"
            assert await_true(lambda: len(list(slurm_probe.sweep.glob(ended))) == 2, 200)
            said = hpc(slurm_probe, "status")  # of accounting, where that answers meanwhile
            assert re.search("squeue (does not (answer|say)|failed)", said) and "lost" not in said, said
        for gate in gates[2:]:
            gate.touch()
        out, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 0, out
    assert states(slurm_probe) == ["completed"] * 4
    assert executions(slurm_probe) == [1, 1, 1, 1]
    assert list(jobs_of(slurm_probe).values()) == [4]


def without_sacct(folder: Path) -> Path:
    """A folder for PATH whose sacct is that of a cluster without accounting; it notes each question."""
    folder.mkdir()
    shim = folder / "sacct"
    shim.write_text(f"#!/bin/sh\necho x >> {folder}/asked\necho 'Slurm accounting storage is disabled' >&2; exit 1\n")
    shim.chmod(0o755)
    return folder


def test_a_job_without_memory_whose_runs_ended_well_is_told_and_asked_about_once(
    slurm_probe: Probe, tmp_path: Path
) -> None:
    """No launcher saw the end of the job: whoever looks first asks, and what was answered is kept."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "sacct"):
        shim = folder / name
        asks = f'echo {name} >> {folder}/asked\n{shutil.which(name)} "$@" | sed s/COMPLETED/OUT_OF_MEMORY/g\n'
        shim.write_text(f"#!/bin/bash\n{asks}")
        shim.chmod(0o755)
    assert slurm_probe.run("note=1,2", "ret=number", "launch.bg=true", *SMALL).code == 0
    assert await_true(lambda: len(list(slurm_probe.sweep.glob("*/outcome.json"))) == 2)
    assert await_true(lambda: {state for _, state in in_squeue(slurm_probe)} == {"COMPLETED"})
    swept, verbs = slurm_probe.sweep, ("status", "results", "report")
    for first in verbs:
        slurm_probe.sweep = Path(shutil.copytree(swept, tmp_path / first))
        said = hpc(slurm_probe, first, path=folder)
        notes = [run["reason"] for run in json.loads(hpc(slurm_probe, "status", "--json", path=folder))["runs"]]
        assert all("the job's state is OUT_OF_MEMORY" in note for note in notes) and len(notes) == 2, notes
        assert first == "report" or "the job's state is OUT_OF_MEMORY" in said
        asked = (folder / "asked").read_text()
        for verb in verbs:
            hpc(slurm_probe, verb, path=folder)
        assert (folder / "asked").read_text() == asked
        assert states(slurm_probe) == ["completed"] * 2


def ended(probe: Probe, path: Path | None, out: str, code: int) -> dict[str, Any]:
    """All that a user, and a program, see of a sweep that has ended."""
    after = json.loads(hpc(probe, "status", "--json", path=path))["runs"]
    return {
        "code": code,
        "told": set(re.findall(r"^run \d: (?:completed|failed|cancelled|lost)", out, re.MULTILINE)),
        "status": [(run["state"], run["exit_code"]) for run in after],
        "results": [run["result"] for run in json.loads(hpc(probe, "results", "--json", path=path))],
        "files": sorted({p.name for p in probe.sweep.glob("*/*")}),
        "attempts": [len(list(Path(run["dir"]).glob("logs/*/"))) for run in after],
        "resume": hpc(probe, "resume", "completed", path=path, code=None).replace(str(probe.sweep), "SWEEP"),
    }


def test_without_accounting_nothing_changes(slurm_probe: Probe, tmp_path: Path) -> None:
    """Runs that end well, fail, are killed with their script (only the scheduler knows how), and are cancelled."""
    paths = [None, without_sacct(tmp_path / "shim")]
    probes = [Probe(tmp_path / name, "slurm") for name in ("with", "without")]
    for probe in probes:
        probe.tmp.mkdir()
    ends = "+ends={well: [null, 0], killed: [null, 600], cancelled: [null, 601], failed: [0, 0]}"
    each = ("note=well,killed,cancelled,failed", "fail_rank='${ends.${note}[0]}'", "sleep='${ends.${note}[1]}'")
    words = (ends, *each, "ret=number", *SMALL)
    told = []
    with probes[0].started(*words) as first, probes[1].started(*words, path=paths[1]) as second:
        for probe, path in zip(probes, paths, strict=True):
            assert await_true(lambda probe=probe: len(probe.saw()) == 4)
            ids = {run["run"]: run["job_id"] for run in json.loads(hpc(probe, "status", "--json", path=path))["runs"]}
            subprocess.run(["scancel", "--signal=KILL", "--full", ids[1]], check=True)
            assert "run 2" in hpc(probe, "cancel", "2", path=path)
        for launcher, probe, path in zip((first, second), probes, paths, strict=True):
            out, _ = launcher.communicate(timeout=120)
            told.append(ended(probe, path, out, launcher.returncode))
            assert out.count("accounting storage is disabled") <= (path is not None), out
    assert told[0] == told[1]
    assert [state for state, _ in told[0]["status"]] == ["completed", "cancelled", "cancelled", "failed"]
    assert told[0]["attempts"] == [1] * 4 and len(told[0]["told"]) == 4


def test_without_accounting_a_queue_that_forgets_at_once_costs_a_warning(slurm_probe: Probe, tmp_path: Path) -> None:
    """As with a small MinJobAge: accounting would know of jobs that have ended; without it, their own files do.

    The queue has forgotten the jobs, and their files are not there yet, when accounting is asked.
    """
    shim = without_sacct(tmp_path / "shim")
    (shim / "squeue").write_text(
        f"#!/bin/bash\n[ -e {shim}/asked ] || exit 0\nwords=()\n"
        'for word; do [ "$word" = --states=all ] || words+=("$word"); done\n'
        f'exec {shutil.which("squeue")} "${{words[@]}}"\n'
    )
    (shim / "squeue").chmod(0o755)
    result = slurm_probe.run("fail_rank=null,0", "sleep=1", "ret=number", *SMALL, path=shim)
    assert result.code == 1
    assert (shim / "asked").exists() and result.text.count("accounting storage is disabled") == 1, result.text
    seen = ended(slurm_probe, shim, result.out, result.code)
    assert [state for state, _ in seen["status"]] == ["completed", "failed"]
    assert seen["results"] == [41.5, None] and seen["attempts"] == [1, 1]


def test_a_queue_that_does_not_answer_is_not_taken_for_lost_runs(slurm_probe: Probe, tmp_path: Path) -> None:
    assert slurm_probe.run("sleep=300", "launch.bg=true", *SMALL).code == 0
    shim = tmp_path / "dead"
    shim.mkdir()
    for name in ("squeue", "sacct"):
        (shim / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
        (shim / name).chmod(0o755)
    for verb, code in (("status", 0), ("resume", 2)):
        assert "does not answer" in hpc(slurm_probe, verb, code=code, path=shim)
    assert "run 0" in hpc(slurm_probe, "cancel")
