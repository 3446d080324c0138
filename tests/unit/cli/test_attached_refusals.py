"""A run or shell at this console whose request SLURM refuses: the key to change, and exit code 2, as for a sweep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.system.probe import here

RESERVATION = "Requested reservation is invalid"
PARTITION = "Invalid partition name specified"


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for stand-ins of SLURM's commands, first in the PATH."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SALLOC_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    here.cache_clear()
    return tmp_path / "bin"


def stand_in(folder: Path, **commands: str) -> None:
    for name, body in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize("typed", [["scheduler.extra.export=NONE"], ["scheduler.submit_extra.open-mode=truncate"]])
def test_an_option_that_salloc_lacks_is_told(typed: list[str], bin_: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["scheduler=slurm", "resources.cpus_per_proc=1", "launch.dry_run=true", *typed]
    name = typed[0].split("extra.")[1].split("=")[0]
    assert main(["run", *words, "--", "true"]) == 0
    told = capfd.readouterr()
    assert f"--{name} has no effect on a run at this console" in told.out + told.err
    assert main(["run", *words, "launch.bg=true", "--", "true"]) == 0
    told = capfd.readouterr()
    assert "has no effect" not in told.out + told.err and f"--{name}" in told.out


@pytest.mark.parametrize("command", [["run"], ["shell"]])
@pytest.mark.parametrize(
    ("typed", "message", "advice"),
    [
        ("scheduler.reservation=x", RESERVATION, "Try: another scheduler.reservation (now x)"),
        ("scheduler.queue=x", PARTITION, "Try: scheduler.queue=NAME, the partitions are gpu, debug"),
    ],
)
def test_a_refusal_names_the_key(
    command: list[str], typed: str, message: str, advice: str, bin_: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(
        bin_,
        salloc=f"echo 'salloc: error: Job submit/allocate failed: {message}' >&2; exit 1",
        sbatch=f"echo 'allocation failure: {message}' >&2; [[ $1 != --test-only || $* != *=x* ]]",
        sinfo="[[ $* != *--format=%R* ]] || printf 'gpu\\ndebug\\n'",
    )
    script = ["--", "true"] if command == ["run"] else []
    assert main([*command, "scheduler=slurm", "resources.cpus_per_proc=1", typed, *script]) == 2
    err = capfd.readouterr().err
    assert f"salloc: error: Job submit/allocate failed: {message}\n" in err  # shown as it was written
    assert f"salloc: {message}\n  {advice}" in err
    assert [*Path.cwd().iterdir()] == []


@pytest.mark.parametrize(
    "sbatch",
    [
        "exit 0",  # the request is accepted: something else failed
        "echo 'allocation failure: Unable to contact slurm controller (connect failure)' >&2; exit 1",
    ],
)
def test_another_failure_keeps_its_exit_code(sbatch: str, bin_: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stand_in(bin_, salloc="echo 'salloc: error: oops' >&2; exit 7", sbatch=sbatch, sinfo="")
    assert main(["run", "scheduler=slurm", "resources.cpus_per_proc=1", "--", "true"]) == 7
    assert "Try:" not in capfd.readouterr().err


def test_a_run_that_has_started_is_not_asked_about(bin_: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stand_in(bin_, salloc='while [ "$1" != bash ]; do shift; done; "$@"', srun="exit 3", sbatch="touch asked", sinfo="")
    assert main(["run", "scheduler=slurm", "resources.cpus_per_proc=1", "--", "true"]) == 3
    assert [*Path.cwd().iterdir()] == []


def test_a_dry_run_within_an_allocation_shows_no_options(
    bin_: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(bin_, scontrol="echo JobState=RUNNING NodeList=n1 NumCPUs=4", sinfo="")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    size = ["resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0"]
    assert main(["run", "scheduler=slurm", *size, "launch.dry_run=true", "--", "true"]) == 0
    out = capsys.readouterr().out
    assert "run by:\n  bash " in out and "srun " in out
    assert "#SBATCH" not in out and "directive" not in out


def test_a_dry_run_shows_what_salloc_gets(bin_: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scheduler=slurm", "resources.cpus_per_proc=1", "scheduler.queue=q", "launch.dry_run=true"]
    assert main(["run", *words, "--", "true"]) == 0
    out = capsys.readouterr().out
    given = [word for word in out.partition("  salloc ")[2].split() if word.startswith("--")]
    given = given[: given.index("--partition=q") + 1]
    lines = out.splitlines()
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")] == given
    rows = [line.split()[0] for line in lines if line.startswith("--")]
    assert rows == [word.partition("=")[0] for word in given]


@pytest.mark.parametrize(
    ("python", "body", "why"),
    [
        ("bin/python3", 'exec /bin/sh -c \'echo "$0: No module named hpc_hydra" >&2; exit 1\' "$0"', "imported by"),
        ("bin/none/python", "", "none/python on its node: No such file"),
    ],
)
def test_a_python_without_hpc_hydra_is_named(
    python: str, body: str, why: str, bin_: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if body:
        stand_in(bin_, python3=body)
    stand_in(bin_, salloc="exit 127", sbatch="exit 0", sinfo="")
    typed = ["scheduler=slurm", "resources.cpus_per_proc=1", f"launch.python={bin_.parent / python}"]
    assert main(["run", *typed, "--", "true"]) == 127
    err = capfd.readouterr().err
    assert f"{bin_.parent / python}" in err and why in err and "Try: " in err and "launch.python=" in err
