"""`status`, `logs`, `wait` and `cancel` of a run that is attached to another console."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.records.files import read_lines
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job
from hpc_hydra.sweep.recover import recover
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep
from tests.awaiting import await_true
from tests.fakes.commands import Fakes
from tests.unit.cli.running import argv, environment
from tests.unit.launcher.fakes import running, squeue

SIZE = ("resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")


class Console:
    """Starts attached runs in the directory ``d``, each in a process of its own."""

    def __init__(self, open_: ExitStack) -> None:
        self._open = open_

    def run(self, *words: str) -> subprocess.Popen[str]:
        command = argv("run", *SIZE, "launch.launch_dir=d", *words)
        process = self._open.enter_context(
            subprocess.Popen(
                command, env=environment(), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=-2
            )
        )
        self._open.callback(process.terminate)
        await_true(lambda: process.poll() is not None or SweepPaths(Path("d")).manifest.exists())
        await_true(lambda: "submitting" in [line["event"] for line in read_lines(SweepPaths(Path("d")).manifest)])
        return process


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SALLOC_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as open_:
        yield Console(open_)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fakes = Fakes(tmp_path / "bin", monkeypatch)
    fakes.put("sinfo", "")
    return fakes


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints, with its exit code."""
    code = main(words)
    both = capsys.readouterr()
    return f"{both.out}{both.err}exit code {code}"


def test_a_run_on_a_scheduler(console: Console, commands: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    commands.put(
        "salloc",
        "until [ -e go ]; do sleep 0.05; done; export SLURM_JOB_ID=7\n"
        'while [ "$1" != bash ]; do shift; done; trap : TERM; "$@"',
    )
    commands.put(
        "srun", 'mkdir -p "d/logs/$HPC_HYDRA_ATTEMPT"; echo hello; until [ -e end ]; do sleep 0.05; done; exit 3'
    )
    commands.put("scancel", "touch end")
    squeue(commands, _7="RUNNING")
    Path("d/logs/20200101-000000-5").mkdir(parents=True)  # of an earlier run in this directory
    process = console.run("scheduler=slurm", "--", "true")
    assert f"pending       -  process {process.pid} on " in said(capsys, "status", "d")
    assert "there is no output yet: the run is pending" in said(capsys, "logs", "d")
    Path("go").touch()
    await_true(lambda: " running " in said(capsys, "status", "d"))
    assert "  0  7    running" in said(capsys, "status", "d")
    await_true(lambda: "hello" in said(capsys, "logs", "d"))
    assert "cancelled on slurm: run 0" in said(capsys, "cancel", "d")
    assert said(capsys, "wait", "d").endswith("exit code 1")
    assert process.wait() == 3


def test_a_run_that_waits_for_its_allocation_is_cancelled_by_its_launcher(
    console: Console, commands: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.put("salloc", "exec sleep 600")
    process = console.run("scheduler=slurm", "--", "true")
    assert f"signalled the launcher (process {process.pid})" in said(capsys, "cancel", "0", "d")
    assert process.wait() == 143
    assert "unsubmitted" in said(capsys, "status", "d")


def test_a_run_on_this_machine(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    process = console.run("scheduler=local", "--", "sh", "-c", "echo hello; exec sleep 600")
    await_true(lambda: "hello" in said(capsys, "logs", "d"))
    assert "hello" in said(capsys, "logs", "--rank", "0", "d")
    assert " running " in said(capsys, "status", "d")
    assert "cancelled on local: run 0" in said(capsys, "cancel", "d")
    assert process.wait() == 143
    assert "by hpc-hydra" in said(capsys, "status", "cancelled", "d")
    assert said(capsys, "wait", "d").endswith("exit code 1")


def test_from_another_host_it_is_told_how_to_cancel_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = running(tmp_path, ids=("1",))
    SweepPaths(root).manifest.unlink()
    manifest = Manifest(root)
    manifest.started(argv=["x"], host="login9", pid=77, runs=1, attached=True)
    manifest.submitting(Job("job0", "plan0", (0,), "tag"), "slurm")
    recover(sweep := open_sweep(root))
    assert [view.word for view in look(sweep)] == ["unknown"]
    assert "Try: Ctrl-C at its console, or on login9: kill 77" in said(capsys, "cancel", str(root))


def test_a_refused_run_is_recorded(console: Console, commands: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("salloc", "sbatch"):
        commands.put(name, f"echo '{name}: error: Invalid partition name specified' >&2; exit 1")
    assert main(["run", *SIZE, "scheduler=slurm", "launch.launch_dir=d", "--", "true"]) == 2
    assert "refused: Invalid partition name specified" in " ".join(said(capsys, "status", "d").split())
