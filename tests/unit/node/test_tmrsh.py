"""The ranks on the other hosts of a PBS job: their signals, and their output; attached jobs."""

from __future__ import annotations

import builtins
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.host_starter import Host
from hpc_hydra.schedulers.pbs.tmrsh import Tmrsh, program
from tests.awaiting import await_true
from tests.fakes.commands import Fakes


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    program.cache_clear()
    return Fakes(tmp_path / "bin", monkeypatch)


def test_a_host_that_answers_late_delays_no_signal_to_another(commands: Fakes, tmp_path: Path) -> None:
    wait = f'[ "$1" != late ] || until [ -e {tmp_path}/other ]; do sleep 0.05; done'
    commands.put("pbs_tmrsh", f"{wait}\necho $5 > {tmp_path}/$1")
    hosts = {1 << 22: Host("late", 1, False), (1 << 22) + 1: Host("other", 2, False)}
    Tmrsh().signal(signal.SIGTERM, hosts, "/script")
    assert [(tmp_path / name).read_text() for name in ("late", "other")] == ["TERM\n", "TERM\n"]


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, BlockingIOError])
def test_output_that_cannot_be_read_at_first_is_not_lost(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script, hosts = str(tmp_path / "script"), [Host("n2", 1, False), Host("n3", 2, False)]
    Tmrsh().prepare(script, hosts)
    failing, real = [f"{script}.1.out"] * 2, builtins.open

    def opened(path: Any, *args: Any, **options: Any) -> Any:
        if path in failing:
            failing.remove(path)
            raise error(path)
        return real(path, *args, **options)

    monkeypatch.setattr(builtins, "open", opened)
    with Tmrsh().relaying(script, hosts):
        for host in hosts:
            Path(f"{script}.{host.number}.out").write_text(f"from {host.name}\n")
    assert sorted(capfd.readouterr().out.splitlines()) == ["from n2", "from n3"]


def test_an_attached_job_that_has_left_the_queue_waits_for_its_exit_code(commands: Fakes, tmp_path: Path) -> None:
    commands.put("qsub", "echo 1.srv")
    state = r"Job Id: 1.srv\n    job_state = F\n    stime = x\n    Exit_status = 3\n"
    down = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; echo 'Connection refused' >&2; exit 255; }}"
    finished = "echo 'qstat: 1.srv Job has finished, use -x or -H' >&2; exit 35"
    commands.put("qstat", f'case "$*" in *-x*) {down}; printf "{state}" ;; *) {finished} ;; esac')
    argv = [sys.executable, "-m", "hpc_hydra.node", "qsub_attached", "--log", str(tmp_path / "log"), "--", "qsub"]
    assert subprocess.run(argv, capture_output=True, timeout=120).returncode == 3


def test_an_attached_job_that_cannot_be_deleted_is_told_of_and_followed(commands: Fakes, tmp_path: Path) -> None:
    commands.put("qsub", "echo 1.srv")
    commands.put("qdel", f"touch {tmp_path}/deleting; echo 'qdel: Unauthorized Request' >&2; exit 159")
    state = r"Job Id: 1.srv\n    job_state = $state\n    stime = x\n    Exit_status = 3\n"
    commands.put("qstat", f'state=R; [ ! -e {tmp_path}/ended ] || state=F; printf "{state}"')
    argv = [sys.executable, "-m", "hpc_hydra.node", "qsub_attached", "--log", str(tmp_path / "log"), "--", "qsub"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stderr.readline() == "hpc_hydra: job 1.srv\n"
    process.terminate()
    assert await_true((tmp_path / "deleting").exists)
    assert "Unauthorized Request; not cancelled: 1.srv" in process.stderr.readline()
    (tmp_path / "ended").touch()
    assert process.wait(120) == 3
    process.stderr.close()


def test_an_attached_job_in_a_queue_that_does_not_exist_names_the_queues(commands: Fakes, tmp_path: Path) -> None:
    commands.put("qsub", "echo 'qsub: Unknown queue' >&2; exit 170")
    commands.put("qstat", "echo 'workq 0 0 yes yes 0 0 0 0 0 0 Exec'")
    argv = [sys.executable, "-m", "hpc_hydra.node", "qsub_attached", "--log", str(tmp_path / "log"), "--", "qsub"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (170, "qsub: Unknown queue\n  Try: scheduler.queue=workq\n")
