"""Coming back to a sweep: status, logs, cancel, wait, resume, results, on sweeps of this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_hydra.cli import sweep_commands
from hpc_hydra.cli.main import main
from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep
from tests import awaiting, forking

ROOT = Path(__file__).parents[3]
APP = """
import os, signal, sys, time
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    here = Path(cfg.marks)
    with (here / f"executed.{HydraConfig.get().job.num}").open("a") as f:
        f.write(f"{cfg.resources.time_limit}\\n")
    def save(*_):
        (here / "saving").touch()
        while not (here / "saved").exists():
            time.sleep(0.05)
        sys.exit(0)
    if cfg.saves:
        signal.signal(signal.SIGTERM, save)
    print(f"lr is {cfg.optim.lr}, rank {os.environ['RANK']}", flush=True)
    if cfg.bad and not (here / "mended").exists():
        raise ValueError(f"bad {cfg.optim.lr}")
    while cfg.wait and not (here / "go").exists():
        time.sleep(0.05)
    return {"loss": cfg.optim.lr * 2, "step": 3}

if __name__ == "__main__":
    main()
"""
CONFIG = """
defaults: [hpc, _self_]
marks: ???
bad: false
wait: false
saves: false
optim: {lr: 0.1}
"""


class Sweeps:
    """A small application, its sweeps, and the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(APP)
        (folder / "config.yaml").write_text(CONFIG)
        # logs are compared byte for byte: without the warnings by which Hydra 1.4 announces 1.5
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}

    def argv(self, *overrides: str) -> list[str]:
        return [sys.executable, "train.py", "-m", "scheduler=local", f"marks={self.folder}", *overrides]

    def launch(self, *overrides: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.argv(*overrides))

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*overrides), cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, text=True
        )

    def hpc(self, *argv: str, code: int = 0) -> str:
        """Output of a command, errors too, which must end with this code."""
        done = self._run([sys.executable, "-m", "hpc_hydra.cli", *argv])
        assert done.returncode == code, done.stdout + done.stderr
        assert not done.stderr.startswith("Traceback") and "\nTraceback" not in done.stderr
        return done.stdout + done.stderr

    def states(self, *argv: str) -> dict[int, str]:
        runs = json.loads(self.hpc("status", "--json", *argv))["runs"]
        return {run["run"]: run["state"] for run in runs}

    def executed(self, num: int) -> list[str]:
        path = self.folder / f"executed.{num}"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def sweep(self) -> Path:
        (found,) = [p.parent for p in self.folder.glob("multirun/*/*/.hpc_hydra")]
        return found

    def _run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return forking.run(argv, cwd=self.folder, env=self.env)


@pytest.fixture
def sweeps(tmp_path: Path) -> Sweeps:
    return Sweeps(tmp_path)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    """Two good runs and two bad ones, two ranks each. Tests only look at it."""
    made = Sweeps(tmp_path_factory.mktemp("ended"))
    done = made.launch("optim.lr=0.1,0.2", "bad=false,true", "resources.procs_per_node=2")
    assert done.returncode == 1, done.stdout + done.stderr
    return made


def await_true(check: Callable[[], object]) -> None:
    assert awaiting.await_true(check)


# looking


def test_status_tells_states_overrides_and_reasons(ended: Sweeps) -> None:
    text = ended.hpc("status")
    assert "2 completed, 2 failed" in text
    assert "optim.lr=0.2 bad=true" in text and "ValueError: bad 0.2" in text
    assert text.count("scheduler=local") == 1  # all runs have it


def test_status_as_json_is_whole(ended: Sweeps) -> None:
    runs = json.loads(ended.hpc("status", "--json", str(ended.sweep)))["runs"]
    assert [run["state"] for run in runs] == ["completed", "failed", "completed", "failed"]
    assert all(run["attempt"] == 1 and run["job_id"] == f"job0.{run['run']}" for run in runs)
    assert runs[1]["exit_code"] == 1 and "bad 0.1" in runs[1]["reason"] and Path(runs[1]["log"]).exists()


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["3"], [3]),
        (["0-2"], [0, 1, 2]),
        (["1,3"], [1, 3]),
        (["0,2-3"], [0, 2, 3]),
        (["failed"], [1, 3]),
        (["lr=0.2"], [2, 3]),
        (["optim.lr=0.1"], [0, 1]),
        (["lr=0.2", "0"], [0, 2, 3]),
        (["bad=true", "0"], [0, 1, 3]),
        (["lost"], []),
    ],
)
def test_runs_are_chosen_by_number_state_or_override(
    ended: Sweeps, words: list[str], runs: list[int], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(ended.folder)
    assert main(["status", "--json", *words]) == 0
    assert [run["run"] for run in json.loads(capsys.readouterr().out)["runs"]] == runs


def test_failed_selects_runs_that_timed_out_or_are_lost_too(ended: Sweeps, tmp_path: Path) -> None:
    copied = Sweeps(tmp_path)
    sweep = shutil.copytree(ended.sweep, tmp_path / "multirun" / "day" / "time")
    shutil.rmtree(sweep / ".hpc_hydra" / "ended")  # the index of what the files below say
    for num, state in ((0, "lost"), (1, "timeout")):
        outcome = sweep / str(num) / "outcome.json"
        outcome.write_text(json.dumps({**json.loads(outcome.read_text()), "status": state}))
    assert copied.states("failed") == {0: "lost", 1: "timeout", 3: "failed"}
    assert copied.states("timeout") == {1: "timeout"}
    shown = copied.hpc("logs", "failed")
    assert "run 0" in shown and "run 1" in shown and "run 2" not in shown, shown


def test_watching_a_sweep_that_has_ended_returns(ended: Sweeps) -> None:
    assert ended.hpc("status", "--watch").count("ValueError: bad 0.1") == 1


def test_logs_show_why_a_run_failed_else_rank_0(ended: Sweeps) -> None:
    assert "ValueError: bad 0.1" in ended.hpc("logs", "1")
    several = ended.hpc("logs", "failed")
    order = [several.index(part) for part in ("==> run 1 ", "ValueError: bad 0.1", "==> run 3 ", "ValueError: bad 0.2")]
    assert order == sorted(order)
    where = str(ended.sweep)
    assert ended.hpc("logs", "0", where) == "lr is 0.1, rank 0\n"
    assert ended.hpc("logs", "0", where, "--rank", "1") == "lr is 0.1, rank 1\n"
    assert ended.hpc("logs", "0", where, "--follow", "--rank", "1") == "lr is 0.1, rank 1\n"
    assert ended.hpc("logs", "0") == f"lr is 0.1, rank 0\nsweep: {where}\n"
    both = ended.hpc("logs", "0", "--all-ranks")
    assert both.index("==> rank 0 <==") < both.index("rank 0\n") < both.index("==> rank 1 <==") < both.index("rank 1\n")


def test_an_empty_log_is_said_to_be_empty_with_the_reason_of_the_end(
    ended: Sweeps, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = shutil.copytree(ended.sweep, tmp_path / "multirun" / "day" / "time")
    shutil.rmtree(sweep / ".hpc_hydra" / "ended")  # the index of what the files below say
    why = "rank 1 on n01: killed by SIGKILL"
    for log in sweep.glob("*/logs/*/rank_*.log"):
        log.write_text("")
    (log,) = sweep.glob("3/logs/*/rank_0.log")
    log.write_text("lr is 3\n")
    for num in (1, 3):
        (log,) = (sweep / str(num)).glob("logs/*/rank_1.log")
        file = sweep / str(num) / "outcome.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "reason": why, "rank": 1, "log": str(log)}))

    def logs(*argv: str) -> tuple[str, str]:
        assert sweep_commands.logs([str(sweep), *argv]) == 0
        return tuple(capfd.readouterr())

    assert logs("1") == ("", f"run 1: rank_1.log is empty; failed: {why}\n")
    assert logs("1", "--rank", "0") == ("", f"run 1: rank_0.log is empty; failed: {why}\n")
    assert logs("1", "--follow") == ("", f"run 1: rank_1.log is empty; failed: {why}\n")
    assert logs("0") == ("", "run 0: rank_0.log is empty; completed\n")
    out, err = logs("1", "--all-ranks")
    assert (
        out.split("\n") == ["==> rank 0 <==", "==> rank 1 <==", ""]
        and f"each of its logs is empty; failed: {why}" in err
    )
    assert logs("3", "--all-ranks") == ("==> rank 0 <==\nlr is 3\n==> rank 1 <==\n", "")
    out, err = logs("failed")
    assert (out.count(f"rank_1.log <==\n(empty; failed: {why})\n"), out.count("(empty"), err) == (2, 2, "")
    assert logs("failed", "--rank", "0")[0].count("(empty") == 1


def test_in_a_terminal_logs_of_one_run_have_a_header(
    ended: Sweeps, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert sweep_commands.logs([str(ended.sweep), "0"]) == 0
    said = capfd.readouterr()
    assert said.out == "lr is 0.1, rank 0\n"
    assert re.fullmatch(r"==> run 0 .*optim\.lr=0\.1 .*: /.*/0/logs/.*/rank_0\.log <==\n", said.err), said.err


def test_results_beside_overrides(ended: Sweeps) -> None:
    lines = ended.hpc("results", "--csv").splitlines()
    assert lines[0].endswith(",job_id,seconds,hosts,attempts,dir") and lines[1].endswith(f",1,{ended.sweep}/0")
    assert [line.rsplit(",", 5)[0] for line in lines] == [
        "run,optim.lr,bad,state,loss,step",
        "0,0.1,False,completed,0.2,3",
        "1,0.1,True,failed,,",
        "2,0.2,False,completed,0.4,3",
        "3,0.2,True,failed,,",
    ]
    assert "loss" in ended.hpc("results")
    data = json.loads(ended.hpc("results", "--json", "completed"))
    assert [run["result"] for run in data] == [{"loss": 0.2, "step": 3}, {"loss": 0.4, "step": 3}]
    assert data[0]["overrides"]["optim.lr"] == 0.1 and data[0]["overrides"]["bad"] is False


def test_wait_ends_as_the_launcher_did(ended: Sweeps) -> None:
    text = ended.hpc("wait", code=1)
    assert "2 of 4 runs failed" in text and "ValueError: bad 0.2" in text


def test_wait_shows_the_batch_shells_log_where_no_rank_has_started(sweeps: Sweeps) -> None:
    sweeps.launch("bad=true")
    (file,) = sweeps.sweep.glob("*/outcome.json")
    outcome = json.loads(file.read_text())
    file.write_text(json.dumps({**outcome, "log": None, "last_lines": []}))
    shutil.rmtree(sweeps.sweep / ".hpc_hydra" / "ended")  # the index, a cache
    (log,) = sweeps.sweep.glob(".hpc_hydra/jobs/*.log")
    log.write_text("job0.sh: line 9: nonesuch: command not found\n")
    told = sweeps.hpc("wait", code=1)
    assert f"log: {log}\n    | job0.sh: line 9: nonesuch: command not found" in told


def test_nothing_to_cancel(ended: Sweeps) -> None:
    assert "nothing to cancel" in ended.hpc("cancel")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["status", "nowhere"], "neither a directory"),
        (["results", "failde", "."], "'failde' is neither a directory nor a selection of runs; did you mean failed?"),
        (["status", ".", ".."], "'..' is a second directory"),
        (["status", "7"], "runs are 0-3"),
        (["status", "lr=5"], "no run has the override"),
        (["status", "."], None),
        (["logs"], "choose one run of"),
        (["logs", "failed", "-f"], "choose one run of"),
        (["logs", "-r", "1", "."], "Try: hpc-hydra logs 0 --rank 1 "),
        (["logs", "0", "--rank", "2"], "--rank 0 to --rank 1"),
        (["wait", "3"], "waits for all runs"),
        (["resume", "1", "launch.seed=3"], "Try: hpc-hydra resume 1 -- launch.seed=3 to change it"),
        (["resume", "--", "optim.lr=3"], "only single keys can change, of the groups"),
        (["resume", "--", "system=lumi"], "another group choice is not possible"),
        (["resume", "--", "resources.nodez=2"], "resources.nodes"),
        (["resume", "--", "resources.nodes=1,2"], "one value for each key"),
        (["resume", "--", "launch.bg=true"], "--bg"),
        (
            ["resume", "failed", ".", "--", "launch.seed=3", "--bg"],
            "Try: hpc-hydra resume failed . --bg -- launch.seed=3\n",
        ),
        (["resume", "--failed", "--all"], "not allowed with argument --failed\n  Try: --all or --failed"),
        (["results", "--csv=out.csv", "."], "Try: hpc-hydra results --csv . > out.csv"),
        (["results", ".", "--cvs"], "unrecognized arguments: --cvs\n  Try: --csv"),
        (["status", ".", "--nothing"], "Try: hpc-hydra status --help"),
        (["logs", "0", "--rank", "one"], "Try: hpc-hydra logs 3 --rank 1 --follow"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_message_and_exit_code_2(
    ended: Sweeps, argv: list[str], says: str | None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(ended.folder)
    assert main(argv) == (0 if says is None else 2)
    assert says is None or says in capsys.readouterr().err
    words = [view.word for view in look(open_sweep(ended.sweep))]
    assert words == ["completed", "failed", "completed", "failed"]
    assert not list(ended.sweep.glob(".hpc_hydra/*.lock"))


@pytest.mark.parametrize(
    "words",
    [
        ["logs"],
        ["logs", "lost"],
        ["stacks"],
        ["wait", "failed", "SWEEP"],
        ["logs", "0", "SWEEP/0/outcome.json"],
        ["status", "SWEEP/1"],
        ["status", "SWEEP/.hpc_hydra"],
        ["status", "9"],
        ["wait", "SWEEP", "SWEEP"],
        ["status", "1", "SWEEP", "."],
        ["status", "train.py"],
        ["list", "train.py"],
        ["list", "nowhere"],
        ["resume", "0", "--", "SWEEP"],
        ["resume", "SWEEP", "--", "0", "--"],
        ["resume", "0", "SWEEP", "--", "launch.seed=3", "--", "--yes"],
        ["systems", "frontier", "lumi"],
        ["keys", "resources", "nodes"],
    ],
    ids=" ".join,
)
def test_what_is_advised_can_be_typed(
    ended: Sweeps, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ended.folder)
    where = str(ended.sweep.relative_to(ended.folder))
    assert main([word.replace("SWEEP", where) for word in words]) == 2
    told = capsys.readouterr().err
    advised = told.rstrip("\n").rpartition("Try: ")[2].partition(", for")[0]
    if not advised.startswith("hpc-hydra "):  # in the place of the first argument
        advised = f"hpc-hydra {words[0]} {advised}"
    assert main(shlex.split(advised)[1:]) in (0, 1), told + capsys.readouterr().err


def test_results_of_a_state_that_no_run_is_in(ended: Sweeps, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "lost", str(ended.sweep)]) == 0
    assert "no run is lost\n4 runs: 2 completed, 2 failed" in capsys.readouterr().out


def test_status_of_a_state_that_no_run_is_in(ended: Sweeps) -> None:
    assert "no run is pending or lost\n4 runs: 2 completed, 2 failed" in ended.hpc("status", "pending", "lost")


def test_no_sweep_here_is_said(tmp_path: Path) -> None:
    assert "no sweep" in Sweeps(tmp_path).hpc("status", code=2)


def test_status_imports_neither_hydra_nor_torch(ended: Sweeps) -> None:
    code = "import sys; from hpc_hydra.cli.main import main; main(['status']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ended.folder, env=ended.env, capture_output=True, text=True, check=True
    )
    assert "'hydra'" not in done.stdout and "'torch'" not in done.stdout and "'submitit'" not in done.stdout


# submitting again


def test_resume_submits_only_what_failed_and_keeps_the_old_attempts(sweeps: Sweeps) -> None:
    assert sweeps.launch("bad=false,true").returncode == 1
    (sweeps.folder / "mended").touch()
    text = sweeps.hpc("resume")
    assert "1 of 2 runs is submitted again" in text
    assert set(sweeps.states().values()) == {"completed"}
    assert [len(sweeps.executed(num)) for num in range(2)] == [1, 2]
    attempts = sorted((sweeps.sweep / "1" / "logs").iterdir())
    assert len(attempts) == 2
    assert json.loads((attempts[0] / "outcome.json").read_text())["status"] == "failed"
    assert "ValueError" in (attempts[0] / "rank_0.log").read_text()
    runs = json.loads(sweeps.hpc("status", "--json"))["runs"]
    assert [run["attempt"] for run in runs] == [1, 2]
    assert "nothing to resume: 2 completed\n" in sweeps.hpc("resume")
    assert "nothing to resume: no run is failed; 2 completed\n" in sweeps.hpc("resume", "failed")
    assert "is completed: it is not submitted" in sweeps.hpc("resume", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resources.nodez=2"], "Try: resources.nodes"),
        (["resources.time_limit=yesterday"], "resources.time_limit"),
        (["optim.lr=3"], "a new sweep for other values"),
        (["resource.nodes=3"], "Try: resources.nodes=3; or keys such as"),
        (["~resource.nodes"], "Try: resources.nodes; or keys such as"),
        (["resources.nodes=1,2"], "resources.nodes"),
        (["--bg"], "Try: hpc-hydra resume 0 SWEEP --bg"),
        (["launch.seed=3", "--", "foo"], "'foo' is not an override\n  Try: resources.time_limit=2h"),
        (["--nope"], "'--nope' is not an override"),
        (["resources.time_limit=2h", "--yes"], "Try: hpc-hydra resume 0 SWEEP --yes -- resources.time_limit=2h"),
    ],
)
def test_wrong_words_are_refused_also_where_nothing_is_to_be_resumed(
    ended: Sweeps, words: list[str], said: str
) -> None:
    from hpc_hydra.cli.sweep_commands import resume
    from hpc_hydra.errors import HpcHydraError

    with pytest.raises(HpcHydraError) as told:
        resume(["0", str(ended.sweep), "--", *words])
    assert said in str(told.value).replace(str(ended.sweep), "SWEEP") and told.value.exit_code == 2


def test_good_overrides_where_nothing_is_to_be_resumed_are_no_error(
    ended: Sweeps, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpc_hydra.cli.sweep_commands import resume

    assert resume(["0", str(ended.sweep), "--bg", "--", "resources.time_limit=2h"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_resume_with_overrides_makes_a_new_plan_that_the_ranks_see(sweeps: Sweeps) -> None:
    assert sweeps.launch("optim.lr=0.1,0.2", "bad=true", "resources.time_limit=5m").returncode == 1
    (sweeps.folder / "mended").touch()
    sweeps.hpc("resume", "lr=0.1", "--", "resources.time_limit=7m")
    assert sweeps.states() == {0: "completed", 1: "failed"}
    assert sweeps.executed(0) == ["5m", "7m"]
    sweeps.hpc("resume", "1", "--", "resources.time_limit=8m", "resources.procs_per_node=2")
    assert sweeps.executed(1) == ["5m", "8m", "8m"]
    overrides = (sweeps.sweep / "1" / ".hydra" / "overrides.yaml").read_text()
    assert "8m" in overrides and "5m" not in overrides


def test_runs_of_a_killed_launcher_are_completed_each_executed_once(sweeps: Sweeps) -> None:
    """The run that was being executed goes on; those that waited in the killed launcher are lost, and resumed."""
    launcher = sweeps.start("optim.lr=1,2,3", "wait=true", "resources.exclusive=true")
    await_true(lambda: sweeps.executed(0))
    assert sweeps.states() == {0: "running", 1: "pending", 2: "pending"}
    launcher.kill()
    launcher.wait()
    await_true(lambda: sweeps.states() == {0: "running", 1: "lost", 2: "lost"})
    assert "launcher" in sweeps.hpc("status", "1")
    assert "run 0 is running: it is not submitted" in sweeps.hpc("resume", "0")
    (sweeps.folder / "go").touch()
    sweeps.hpc("resume")
    await_true(lambda: set(sweeps.states().values()) == {"completed"})
    assert [len(sweeps.executed(num)) for num in range(3)] == [1, 1, 1]
    sweeps.hpc("wait")


def test_a_sweep_that_is_moved_while_it_runs_is_told_in_both_places_and_loses_nothing(sweeps: Sweeps) -> None:
    with sweeps.start("wait=true", "hydra.sweep.dir=old") as process:
        await_true(lambda: sweeps.executed(0))
        (sweeps.folder / "old").rename(sweeps.folder / "new")
        (sweeps.folder / "go").touch()
        process.wait(timeout=120)
    assert "(deleted or moved)" in sweeps.hpc("status", "old", code=2)
    told = sweeps.hpc("status", "new")
    merge = f"cp -a {sweeps.folder}/old/. {sweeps.folder}/new"
    assert "moved while its jobs ran" in told and merge in told, told
    subprocess.run(merge, shell=True, check=True)
    assert sweeps.states("new") == {0: "completed"} and "moved while" not in sweeps.hpc("status", "new")
    assert "0.2" in sweeps.hpc("results", "new")


def test_cancel_reaches_a_running_local_run(sweeps: Sweeps) -> None:
    launcher = sweeps.start("optim.lr=1", "wait=true", "saves=true")
    await_true(lambda: sweeps.executed(0))
    argv = [sys.executable, "-m", "hpc_hydra.cli", "cancel", "0"]
    with subprocess.Popen(argv, cwd=sweeps.folder, env=sweeps.env, stdout=subprocess.PIPE, text=True) as first:
        await_true((sweeps.folder / "saving").exists)
        assert "run 0 is being cancelled already (by hpc-hydra, " in sweeps.hpc("cancel", "0")
        assert sweeps.states() == {0: "running"}
        assert "being cancelled (by hpc-hydra, " in sweeps.hpc("status")
        (sweeps.folder / "saved").touch()
        assert "cancelled on local: run 0" in first.communicate(timeout=120)[0]
    assert sweeps.states() == {0: "cancelled"}
    assert "by hpc-hydra, " in sweeps.hpc("status")
    assert launcher.wait(200) == 1


def test_a_local_run_that_waits_is_cancelled_with_its_launcher_only(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = sweeps.start("optim.lr=1,2", "wait=true", "saves=true", "resources.exclusive=true")
    await_true(lambda: sweeps.executed(0))
    text = sweeps.hpc("cancel", "1", code=2)
    assert "known to their launcher alone" in text and str(launcher.pid) in text
    monkeypatch.chdir(sweeps.folder)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: "\n", raising=False)
    assert sweep_commands.cancel([]) == 130
    said = capsys.readouterr()
    assert str(sweeps.sweep) in said.out and "2 pending or running runs? [y/N]" in said.err
    assert sweeps.states() == {0: "running", 1: "pending"}
    monkeypatch.undo()
    text = sweeps.hpc("cancel", code=2)  # nobody to ask
    assert f"hpc-hydra cancel {sweeps.sweep}, or --yes" in text and sweeps.states()[0] == "running"
    text = sweeps.hpc("cancel", "--yes")
    assert "to cancel all runs" in text and str(sweeps.sweep) in text
    await_true((sweeps.folder / "saving").exists)
    assert sweeps.states()[0] == "running"
    assert "run 0 is being cancelled already (SIGTERM to the launcher, " in sweeps.hpc("cancel", "--yes")
    (sweeps.folder / "saved").touch()
    assert launcher.wait(200) == 130
    assert sweeps.executed(1) == []
    assert sweeps.states()[0] == "cancelled"


def test_resume_waits_for_a_launcher_that_is_cancelling_its_runs(sweeps: Sweeps) -> None:
    launcher = sweeps.start("optim.lr=1,2", "wait=true", "resources.exclusive=true")
    await_true(lambda: sweeps.executed(0))
    sweeps.hpc("cancel", "--yes")
    (sweeps.folder / "go").touch()
    sweeps.hpc("resume")
    assert launcher.wait(200) == 130
    assert sweeps.states() == {0: "completed", 1: "completed"}


def test_wait_can_be_left_and_following_a_log_ends_with_the_run(sweeps: Sweeps) -> None:
    launcher = sweeps.start("optim.lr=1", "wait=true")
    await_true(lambda: sweeps.executed(0))
    argv = [sys.executable, "-m", "hpc_hydra.cli", "wait"]
    with subprocess.Popen(argv, cwd=sweeps.folder, env=sweeps.env, stderr=subprocess.PIPE, text=True) as waiter:
        await_true(lambda: awaiting.takes(waiter.pid, signal.SIGTERM))  # its handlers: before, the default ends it too
        waiter.send_signal(signal.SIGINT)
        _, err = waiter.communicate(timeout=120)
    assert waiter.returncode == 130 and "stopped waiting for 1 run\n" in err
    assert sweeps.states() == {0: "running"}
    argv = [sys.executable, "-m", "hpc_hydra.cli", "logs", "0", "-f"]
    with subprocess.Popen(argv, cwd=sweeps.folder, env=sweeps.env, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        first = follower.stdout.readline()
        (sweeps.folder / "go").touch()  # before any check: both would wait for it
        assert follower.wait(200) == 0
    assert launcher.wait(200) == 0
    assert first == "lr is 1, rank 0\n"


def test_a_second_resume_is_refused_while_one_decides_and_a_run_that_fails_again_fails_it(sweeps: Sweeps) -> None:
    assert sweeps.launch("bad=true").returncode == 1
    lock = sweeps.sweep / ".hpc_hydra" / "resume.lock"
    lock.write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "time": time.time()}))
    assert str(os.getpid()) in sweeps.hpc("resume", code=2)
    lock.write_text(json.dumps({"host": os.uname().nodename, "pid": 2**22 + 1, "time": time.time()}))  # nobody
    assert "1 of 1 run failed" in sweeps.hpc("resume", code=1)
    assert not lock.exists()


def test_a_sweep_that_was_only_set_up_is_left_to_the_user(sweeps: Sweeps) -> None:
    assert sweeps.launch("optim.lr=1,2", "launch.setup_only=true").returncode == 0
    assert sweeps.states() == {0: "unsubmitted", 1: "unsubmitted"}
    assert "by hand" in sweeps.hpc("resume", code=2)
    for told in (sweeps.hpc("status"), sweeps.hpc("wait", code=1)):
        assert "only set up (launch.setup_only)" in told and "hpc-hydra resume" not in told, told
    script = sweeps.sweep / ".hpc_hydra" / "jobs" / "job0.sh"
    subprocess.run(["bash", str(script), "1"], env=sweeps.env, check=True, capture_output=True)
    assert sweeps.states() == {0: "unsubmitted", 1: "completed"}


def test_a_launcher_killed_before_it_had_written_all_is_to_be_started_again(sweeps: Sweeps) -> None:
    assert sweeps.launch("launch.setup_only=true").returncode == 0
    (sweeps.sweep / ".hpc_hydra" / "plans.json").unlink()
    for verb in ("status", "resume"):
        assert "start it again" in sweeps.hpc(verb, code=2)


def test_a_launcher_killed_before_its_first_submission_is_completed(sweeps: Sweeps) -> None:
    assert sweeps.launch().returncode == 0
    meta = sweeps.sweep / ".hpc_hydra"
    first, *_ = (meta / "manifest.jsonl").read_text().splitlines(keepends=True)
    (meta / "manifest.jsonl").write_text(first)  # as it was then, its launcher gone
    (sweeps.sweep / "0" / "outcome.json").unlink()
    for noted in (meta / "ended").glob("*"):
        noted.unlink()
    assert sweeps.states() == {0: "unsubmitted"}
    sweeps.hpc("resume")
    assert sweeps.states() == {0: "completed"}
