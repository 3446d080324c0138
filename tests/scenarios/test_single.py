"""A start without ``-m`` that asks for several processes, or for a scheduler, on several schedulers."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.awaiting import await_true
from tests.scenarios.conftest import ROOT
from tests.scenarios.test_lsf import two_nodes

APP = """\
import hydra, os, pathlib, sys, time
@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
    if os.environ["RANK"] == "0":
        print("got", word := input())
        sys.exit(int(word))
    while os.getppid() != 1:
        time.sleep(0.1)
main()
"""
SMALL = ["resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0", "hydra.run.dir=out"]


@pytest.fixture
def words(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A command line for two nodes of the scheduler in the test's parameter; one of this machine."""
    scheduler = request.param
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "config.yaml").write_text("defaults: [hpc, _self_]\n")
    begin = [sys.executable, "app.py"]
    if scheduler == "local":
        return [*begin, "scheduler=local", *SMALL, "resources.procs_per_node=2"]
    if scheduler == "ssh":
        hosts = request.getfixturevalue("ssh_hosts")
        return [*begin, *hosts.overrides, "scheduler.hosts=[node01,node02]", "resources.nodes=2", *SMALL]
    request.getfixturevalue({"slurm": "slurm_cluster", "flux": "fake_flux", "lsf": "fake_lsf"}[scheduler])
    if scheduler == "lsf":  # its hosts are this machine, and their names need not resolve
        return [*begin, "scheduler=lsf", *two_nodes()[1], *SMALL]
    return [*begin, f"scheduler={scheduler}", "resources.nodes=2", *SMALL]


def on(*names: str) -> Callable[..., object]:
    real = ("slurm", "ssh")
    marked = [pytest.param(name, marks=pytest.mark.cluster) if name in real else name for name in names]
    return pytest.mark.parametrize("words", marked, indirect=True)


@on("lsf", "slurm", "ssh")
def test_input_reaches_rank_0_and_its_exit_code_comes_back(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, input="7\n", capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip
    assert done.returncode == 7, done.stdout + done.stderr
    assert re.search(r"rank 0 of [12]\ngot 7\n$", done.stdout)  # after warnings of Hydra


@on("flux")
def test_a_scheduler_on_the_command_line_gets_a_job_of_one_process(words: list[str], tmp_path: Path) -> None:
    one = [word for word in words if word != "resources.nodes=2"]
    assert "scheduler=flux" in one
    done = subprocess.run(
        one, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, input="7\n", capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip
    assert done.returncode == 7 and "rank 0 of 1\ngot 7\n" in done.stdout, done.stdout + done.stderr
    assert "submitted to flux" in done.stderr and "note:" not in done.stderr
    assert (tmp_path / "out" / "outcome.json").exists()


@on("local", "flux")
def test_a_run_in_a_queue_survives_the_terminal(
    words: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
        os.execvp(words[0], words)
    shown = b""
    while b"rank 0 of" not in shown:
        shown += os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    outcome = tmp_path / "out" / "outcome.json"
    if "scheduler=local" in words:
        assert json.loads(outcome.read_text())["status"] == "cancelled"
        return
    manifest = (tmp_path / "out" / ".hpc_hydra" / "manifest.jsonl").read_text()
    assert '"detached"' in manifest and '"cancelled"' not in manifest
    assert await_true(outcome.exists)  # its input has ended: EOFError
    assert "EOFError" in json.loads(outcome.read_text())["reason"]
