"""Plain scripts tell the run they belong to: its directories, its metrics, its result."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.records import metrics
from tests.unit.cli.running import hpc_hydra

RANK_0 = {"HPC_HYDRA_RUN": "3", "HPC_HYDRA_ATTEMPT": "20260101-000000-7", "RANK": "0"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run; this process is its rank 0."""
    for name, value in {**RANK_0, "HPC_HYDRA_OUTPUT_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_script_logs_metrics(run: Path) -> None:
    assert main(["log", "loss=0.25", "step=10", "tokens=7", "val/acc=nan"]) == 0
    (metric,) = metrics.read(run)
    assert (metric.step, metric.values["loss"], metric.values["tokens"]) == (10, 0.25, 7)
    assert metric.values["val/acc"] != metric.values["val/acc"] and metric.attempt == RANK_0["HPC_HYDRA_ATTEMPT"]


@pytest.mark.parametrize(("variable", "value"), [("RANK", "1"), ("HPC_HYDRA_REPLICA", "1")])
def test_only_the_first_rank_logs(run: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["log", "loss=0.25"]) == 0
    assert not list(run.iterdir())


@pytest.mark.parametrize("words", [["loss"], ["loss=x"], ["step=1.5", "loss=1"], ["loss=1", "--step", "3"]])
def test_what_is_no_metric_is_refused(run: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["log", *words]) == 2
    assert "Try: " in capsys.readouterr().err and not list(run.iterdir())


def test_outside_a_run_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*RANK_0, "HPC_HYDRA_OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert main(["log", "loss=1"]) == 2
    assert "HPC_HYDRA_OUTPUT_DIR is not set" in capsys.readouterr().err


SCRIPT = """
echo "$1"; test "$1" = "$HPC_HYDRA_OUTPUT_DIR|$HPC_HYDRA_OUTPUT_DIR|$HPC_HYDRA_SWEEP|$HPC_HYDRA_RUN|$HPC_HYDRA_JOB_ID"
{log} step=1 loss=$2
{log} step=2 loss=$2 lr=1
echo "working" > "$HPC_HYDRA_RESULT"
echo "{{\\"acc\\": $2$RANK, \\"rank\\": $RANK}}" >> "$HPC_HYDRA_RESULT"
"""


def test_a_swept_script_knows_its_run_logs_and_returns_a_result(tmp_path: Path) -> None:
    log = f"{shlex.quote(sys.executable)} -m hpc_hydra.cli log"
    (tmp_path / "train.sh").write_text(SCRIPT.format(log=log))
    done = hpc_hydra(
        "run", "-m", "scheduler=local", "resources.procs_per_node=2", "launch.launch_dir=swept", "launch.best=max acc",
        "--fill", "+lr=0.1,0.2", "--",
        "bash", "-e", "train.sh", "{output_dir}|{run_dir}|{sweep_dir}|{num}|{job_id}", "{lr}", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lr=0.2], acc 0.2" in done.stdout  # the best run
    (shown,) = (tmp_path / "swept" / "1").glob("logs/*/rank_0.log")
    output_dir, run_dir, sweep_dir, num, job_id = shown.read_text().strip().split("|")
    assert (Path(output_dir), Path(sweep_dir), num) == (tmp_path / "swept" / "1", tmp_path / "swept", "1")
    outcome = json.loads((tmp_path / "swept" / "1" / "outcome.json").read_text())
    assert outcome["result"] == {"acc": 0.2, "rank": 0} and run_dir == output_dir
    status = json.loads(hpc_hydra("status", "--json", "swept", cwd=tmp_path).stdout)
    assert status["runs"][1]["job_id"] == job_id and status["runs"][1]["metrics"]["values"] == {"loss": 0.2, "lr": 1}
    table = hpc_hydra("results", "--csv", "swept", cwd=tmp_path).stdout
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [(row["lr"], row["acc"], row["loss"]) for row in rows] == [("0.1", "0.1", "0.1"), ("0.2", "0.2", "0.2")]


def test_the_users_own_keys_of_these_names_win(tmp_path: Path) -> None:
    words = ("run", "scheduler=local", "launch.launch_dir=kept", "--fill", "+num=seven", "--", "echo", "{num} {seed}")
    assert hpc_hydra(*words, cwd=tmp_path).stdout.split()[0] == "seven"


def test_a_run_without_a_directory_says_that_it_logs_nothing(tmp_path: Path) -> None:
    log = f"{shlex.quote(sys.executable)} -m hpc_hydra.cli log loss=1"
    script = f'echo "${{HPC_HYDRA_OUTPUT_DIR-none}}"; echo 1 > "$HPC_HYDRA_RESULT"; {log}'
    done = hpc_hydra("run", "scheduler=local", "--", "bash", "-c", script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "none\n") and "launch.launch_dir=true" in done.stderr
