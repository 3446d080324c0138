"""`hpc-hydra shell`: how it asks for an allocation, and what a shell there has."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("command", "told"), [("shell", "--nodes=3"), ("doctor", " 3 × 1 ")])
def test_hpc_hydra_shell_takes_a_configuration_of_ones_own(
    command: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [hpc, _self_]\nresources: {nodes: 3}\n")
    assert main([command, "-cd", str(tmp_path), "-cn", "mine", "scheduler=slurm", "launch.dry_run=true"]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scheduler", "want"),
    [
        ("slurm", "--overlap --pty --export=ALL --cpus-per-task=8 bash"),
        ("slurm", "salloc --job-name=shell --nodes=2"),
        ("lsf", "bsub -Is "),
        ("flux", "flux alloc "),
    ],
)
def test_a_dry_run_shows_the_command_and_the_environment(
    scheduler: str, want: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "FLUX_ENCLOSING_ID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    code = main(
        ["shell", f"scheduler={scheduler}", "resources.nodes=2", "resources.procs_per_node=4", "launch.dry_run=true",
         "resources.cpus_per_proc=2", "resources.gpus_per_proc=0", "+launch.env.A=x y", "logging.nccl_debug=INFO",
         "system.cores_per_node=8"]
    )  # fmt: skip
    text = capsys.readouterr().out
    assert code == 0 and want in text and "export A='x y'" in text and "NCCL_DEBUG=INFO" in text


def typed(argv: list[str], lines: str, prompt: str, done: str) -> str:
    """What a terminal shows while ``lines`` are typed at its prompt, until ``done`` has come."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    env |= {"PYTHONPATH": str(ROOT), "TERM": "dumb"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, env)
    text, end, said = "", time.monotonic() + 120, False
    try:
        while done not in text and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                try:
                    text += os.read(terminal, 65_536).decode(errors="replace")
                except OSError:  # nobody is there any more
                    break
            if not said and prompt in text:
                os.write(terminal, lines.encode())
                said = True
    finally:
        os.close(terminal)  # hangs up
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    return text


@pytest.mark.parametrize("scheduler", ["local", pytest.param("slurm", marks=pytest.mark.cluster)])
def test_the_shell_has_a_terminal_and_the_environment_of_the_ranks(
    scheduler: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # what this person's .bashrc does is not of interest
    if scheduler == "slurm":
        request.getfixturevalue("slurm_cluster")
    argv = [sys.executable, "-m", "hpc_hydra.cli.main", "shell", f"scheduler={scheduler}", "resources.nodes=1"]
    argv += ["resources.procs_per_node=1", "resources.gpus_per_proc=0", "+launch.env.A='x  y'"]
    argv += ["+launch.env.PS1='ready> '", "+launch.env.PROMPT_COMMAND='PS1=\"ready> \"'"]
    text = typed(
        argv, "tty\necho \"<$A> <$SLURM_JOB_NUM_NODES> $(hostname)\"; echo en''d\nexit 5\n", "ready> ", "end\r\n"
    )
    assert "/dev/pts/" in text and "<x  y>" in text, text
    if scheduler == "slurm":
        assert "<1> node0" in text
