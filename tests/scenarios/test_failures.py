"""A failure is told, with run, rank, reason and log; the others go on (scenarios B16, B17, B20, B32, B34)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.awaiting import await_true

from .conftest import Probe, Result


@pytest.fixture
def no_leftovers(request: pytest.FixtureRequest):
    yield
    name = "probe" if "probe" in request.fixturenames else None
    if name:
        where = str(request.getfixturevalue(name).tmp)
        assert await_true(lambda: not running(where)), running(where)


def running(where: str) -> list[str]:
    """Processes whose environment or command line names this test's directory."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            state = (proc / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if where.encode() in text and state != "Z" and int(proc.name) != os.getpid():
            found.append(f"{proc.name}: {text[:80]!r}")
    return found


def test_one_failing_run_does_not_stop_the_others(probe: Probe) -> None:
    result = probe.run("note=a,b", "fail_rank=null,0", "ret=number")
    assert result.code == 1
    outcomes = [result.outcome(n) for n in range(4)]
    assert [o["status"] for o in outcomes] == ["completed", "failed"] * 2
    assert [o["result"] for o in outcomes[::2]] == [41.5] * 2
    for num, note in ((1, "a"), (3, "b")):
        assert f"boom-{note}" in result.err and f"boom-{note}" in outcomes[num]["reason"]
        log = Path(outcomes[num]["log"])
        assert "Traceback" in log.read_text()
    assert str(result.outcome(1)["log"]) in result.err  # of the first; the others failed in the same line


def told(result: Result, num: int, reason: str) -> bool:
    """Whether the summary gives this reason below the run."""
    return bool(re.search(rf"\brun {num}\b(?:(?!\brun \d)[\s\S])*?{reason}", result.err))


def test_the_failing_rank_is_named_with_its_reason_and_unchanged_exit_code(probe: Probe) -> None:
    ends = (
        ("raise", 1, "ValueError: boom-x"),
        ("kill", 137, "SIGKILL"),
        ("segv", 139, "SIGSEGV"),
        ("exit", 255, "exit code 255"),
    )
    how = f"how={','.join(how for how, *_ in ends)}"
    size = ("resources.procs_per_node=2", "resources.cpus_per_proc=1")
    result = probe.run(*size, "fail_rank=1", how, "exit_code=255", "note=x", "sleep=100")
    assert result.code == 1
    for num, (_, code, word) in enumerate(ends):
        outcome = result.outcome(num)
        assert (outcome["rank"], outcome["exit_code"]) == (1, code)
        assert word in outcome["reason"] and told(result, num, rf"rank 1 on \S+: .*{word}")


def test_a_dead_rank_ends_the_job_even_when_another_ignores_sigterm(probe: Probe) -> None:
    begin = time.monotonic()
    result = probe.run(
        "resources.procs_per_node=3", "fail_rank=2", "how=exit", "exit_code=7", "ignore_term=1", "sleep=600",
        timeout=110,
    )  # fmt: skip
    assert time.monotonic() - begin < 60 + 20
    outcome = result.outcome(0)
    assert (outcome["rank"], outcome["exit_code"], result.code) == (2, 7, 1)


RETURNED = {
    "dict": ("json", {"acc": 0.5, "list": [1, 2]}), "dataclass": ("pickle", {"value": 42}), "big": ("pickle", None),
    "unpicklable": ("unserialisable", None),
}  # fmt: skip


def test_a_run_is_never_lost_over_its_return_value(local_probe: Probe) -> None:
    result = local_probe.run(f"ret={','.join(RETURNED)}")
    assert result.code == 0, result.text
    for num, (kind, value) in enumerate(RETURNED.values()):
        outcome = result.outcome(num)
        assert (outcome["status"], outcome["result_kind"], outcome["result"]) == ("completed", kind, value)
        if kind == "unserialisable":
            assert outcome["result_note"] and re.search(rf"run {num}\b.*could not be", result.err), result.err


def test_each_rank_has_its_own_complete_log(probe: Probe) -> None:
    result = probe.run("resources.procs_per_node=2", "lines=2000")
    assert result.code == 0, result.text
    (attempt,) = (result.sweep / "0" / "logs").iterdir()
    for rank in range(2):
        lines = (attempt / f"rank_{rank}.log").read_text().splitlines()
        assert [x for x in lines if re.fullmatch(rf"rank {rank} line \d+", x)] == [
            f"rank {rank} line {i}" for i in range(2000)
        ]
        assert sum(x.startswith(f"rank {rank} stderr") for x in lines) == 20
        assert not any(x.startswith("rank") and not x.startswith(f"rank {rank} ") for x in lines)


def test_a_log_directory_deleted_before_the_start_is_made_again(slurm_probe: Probe) -> None:
    """Everything but the sweep's own records is removed while the job is in the queue."""
    argv = slurm_probe.argv("+scheduler.submit_extra.begin=now+3")
    with slurm_probe.started(argv=argv) as launcher:
        assert await_true(lambda: submitted(slurm_probe.sweep) == 1)
        for path in slurm_probe.sweep.iterdir():
            if path.name.isdigit():
                subprocess.run(["rm", "-r", str(path)], check=True)
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, out


def submitted(sweep: Path) -> int:
    manifest = sweep / ".hpc_hydra" / "manifest.jsonl"
    return manifest.read_text().count('"submitted"') if manifest.exists() else 0


def ids_in_queue(probe: Probe) -> set[str]:
    """This test's jobs that wait or run."""
    manifest = (probe.sweep / ".hpc_hydra" / "manifest.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in manifest]
    mine = {job for event in events if event["event"] == "submitted" for job in event["ids"]}
    listed = subprocess.run(["squeue", "-hr", "-o", "%i"], capture_output=True, text=True, check=True).stdout
    return mine & set(listed.split())


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])  # a hangup leaves them: test_closed_terminals
def test_interrupt_cancels_everything_in_one_call(slurm_probe: Probe, tmp_path: Path, sent: int) -> None:
    shim = tmp_path / "bin"
    shim.mkdir()
    calls = tmp_path / "scancel.calls"
    (shim / "scancel").write_text(f'#!/bin/bash\necho "$@" >> {calls}\nexec /usr/bin/scancel "$@"\n')
    (shim / "scancel").chmod(0o755)
    argv = slurm_probe.argv(
        "note=1,2,3,4,5,6", "resources.nodes=2", "resources.exclusive=true", "sleep=300", "launch.on_interrupt=cancel"
    )
    with slurm_probe.started(argv=argv, path=shim) as launcher:
        assert await_true(lambda: len(slurm_probe.saw()) >= 2)
        mine = ids_in_queue(slurm_probe)
        assert len(mine) == 6
        launcher.send_signal(sent)
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 130, out
    assert await_true(lambda: not mine & ids_in_queue(slurm_probe))
    assert len(calls.read_text().splitlines()) == 1
    array = next(iter(mine)).split("_")[0]
    assert array in out


def test_interrupt_can_leave_the_jobs_running(slurm_probe: Probe) -> None:
    argv = slurm_probe.argv("note=1,2", "sleep=300", "launch.on_interrupt=detach")
    with slurm_probe.started(argv=argv) as launcher:
        assert await_true(lambda: len(slurm_probe.saw()) >= 2)
        mine = ids_in_queue(slurm_probe)
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=120)
    try:
        assert launcher.returncode == 130, out
        assert mine and mine <= ids_in_queue(slurm_probe)
        assert next(iter(mine)).split("_")[0] in out and str(slurm_probe.sweep) in out
    finally:
        subprocess.run(["scancel", *{i.split("_")[0] for i in mine}], check=True)


def test_a_failing_scancel_is_told_with_the_ids(slurm_probe: Probe, tmp_path: Path) -> None:
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "scancel").write_text("#!/bin/bash\necho 'scancel: error: no contact' >&2\nexit 1\n")
    (shim / "scancel").chmod(0o755)
    argv = slurm_probe.argv("sleep=300", "launch.on_interrupt=cancel")
    with slurm_probe.started(argv=argv, path=shim) as launcher:
        assert await_true(lambda: slurm_probe.saw())
        mine = ids_in_queue(slurm_probe)
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=120)
    subprocess.run(["scancel", *mine], check=True)
    assert launcher.returncode == 130
    assert "no contact" in out and next(iter(mine)) in out


def test_interrupt_of_a_local_sweep_leaves_nothing_running(probe: Probe) -> None:
    if probe.scheduler == "slurm":
        argv = probe.argv("note=1", "resources.procs_per_node=2", "sleep=300", "launch.on_interrupt=cancel")
    else:
        argv = probe.argv("note=1,2", "resources.procs_per_node=2", "sleep=300", "launch.on_interrupt=cancel")
    with probe.started(argv=argv) as launcher:
        assert await_true(lambda: len(probe.saw()) >= 2)
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 130, out
    assert await_true(lambda: not running(str(probe.out))), running(str(probe.out))


def test_killing_the_launcher_loses_nothing(slurm_probe: Probe) -> None:
    """kill -9 of the launcher: the job ends on its own, with its outcome, and the manifest knows its id."""
    gate = slurm_probe.tmp / "gate"
    argv = slurm_probe.argv("note=1,2", f"gate={gate}", "ret=number")
    with subprocess.Popen(argv, env=slurm_probe.env(), cwd=slurm_probe.tmp, stdout=subprocess.DEVNULL) as launcher:
        assert await_true(lambda: len(slurm_probe.saw()) == 2)
        launcher.kill()
    gate.touch()
    for num in (0, 1):
        outcome = slurm_probe.sweep / str(num) / "outcome.json"
        assert await_true(outcome.exists)
        assert '"completed"' in outcome.read_text()
    env = slurm_probe.saw()[(0, 0)]["env"]
    assert env["SLURM_ARRAY_JOB_ID"] in (slurm_probe.sweep / ".hpc_hydra" / "manifest.jsonl").read_text()
