"""Ranks as real processes: logs, ends, exit codes, signals, and nothing left behind (scenarios B17, B18, B32, B34)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.planning.types import EnvVar, Logging, Rendezvous
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.rank_end import write_end
from hpc_hydra.records.types import RankEnd
from tests import forking
from tests.awaiting import changed

from .conftest import ATTEMPT, ROOT, Frozen, alive, await_true

Freeze = Callable[..., Frozen]
HERE = "Path(f'here.{RANK}').write_text(str(os.getpid()))\n"
SLEEP = HERE + "time.sleep(600)\n"


def here(frozen: Frozen, rank: int = 0) -> int:
    """The pid of a rank's program, once its task function runs."""
    file = frozen.root.parent / f"here.{rank}"
    await_true(lambda: file.exists() and file.read_text())
    return int(file.read_text())


def test_every_rank_knows_who_it_is_and_returns_through_rank_0(freeze: Freeze) -> None:
    frozen = freeze("print(RANK, os.environ['WORLD_SIZE'], os.environ['HPC_HYDRA_SEED']); return RANK + 0.5", procs=2)
    code, outcome = frozen.launch()
    assert (code, outcome["status"], outcome["result"], outcome["world_size"]) == (0, "completed", 0.5, 2)
    assert [frozen.log(r) for r in range(2)] == [f"{r} 2 5\n" for r in range(2)]
    assert outcome["started"] <= outcome["ended"] and outcome["job_id"] == "77"


@pytest.mark.parametrize(
    ("body", "code", "signum", "error"),
    [
        ("raise ValueError('boom')", 1, None, "ValueError: boom"),
        ("sys.exit(7)", 7, None, None),
        ("sys.exit(255)", 255, None, None),
        ("sys.exit('bad luck')", 1, None, "bad luck"),
        ("os._exit(3)", 3, None, None),
        ("import atexit; atexit.register(os._exit, 3)", 3, None, None),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, signal.SIGSEGV, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, signal.SIGKILL, None),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", 130, signal.SIGINT, None),
        ("cfg.nothing_of_this_name", 1, None, "ConfigAttributeError"),
        ("class Odd(Exception):\n    def __str__(self): raise TypeError\nraise Odd", 1, None, "Odd"),
    ],
)
def test_exit_codes_come_through_unchanged(
    freeze: Freeze, body: str, code: int, signum: int | None, error: str | None
) -> None:
    frozen = freeze(body)
    found, outcome = (frozen.launch if signum == signal.SIGKILL else frozen.run)()
    end = frozen.end(0)
    assert (found, outcome["exit_code"], end["exit_code"], end["signal"]) == (code, code, code, signum)
    assert outcome["status"] == "failed" and outcome["rank"] == 0 and not end["told_to_stop"]
    assert (error is None and end["error"] is None) or error in end["error"]


@pytest.mark.parametrize("body", ["sys.exit()", "sys.exit(0)", "pass"])
def test_leaving_with_0_is_well(freeze: Freeze, body: str) -> None:
    code, outcome = freeze(body).run()
    assert (code, outcome["status"], outcome["result_kind"]) == (0, "completed", "none")


def test_a_failure_is_reported_with_rank_reason_and_last_lines(freeze: Freeze) -> None:
    frozen = freeze(
        "print('step', RANK)\nif RANK == 1: raise ValueError('boom\\nsecond line')\ntime.sleep(600)", procs=3
    )
    code, outcome = frozen.launch()
    assert (code, outcome["rank"], outcome["status"]) == (1, 1, "failed")
    assert outcome["reason"] == f"rank 1 on {os.uname().nodename}: ValueError: boom second line"
    assert outcome["last_lines"][0] == "step 1" and outcome["last_lines"][-2:] == ["ValueError: boom", "second line"]
    assert Path(outcome["log"]) == frozen.paths.rank_log(ATTEMPT, 1)
    for victim in (0, 2):
        assert (frozen.end(victim)["told_to_stop"], frozen.end(victim)["exit_code"]) == (True, 143)


def test_a_traceback_is_the_users_own(freeze: Freeze) -> None:
    frozen = freeze("def inner(): raise KeyError('k')\ninner()")
    frozen.run()
    files = [line for line in frozen.log().splitlines() if line.startswith("  File")]
    assert len(files) == 2 and all("train.py" in line for line in files)
    assert frozen.end(0)["traceback"].startswith("Traceback") and "KeyError: 'k'" in frozen.end(0)["traceback"]


def test_an_error_outside_of_the_task_function_is_reported_too(freeze: Freeze) -> None:
    frozen = freeze(outside="import nowhere_to_be_found\n")
    code, outcome = frozen.run()
    assert code == 1 and "ModuleNotFoundError" in outcome["reason"] and "Traceback" in frozen.log()


def test_a_program_that_never_calls_its_task_is_a_failure(freeze: Freeze) -> None:
    code, outcome = freeze(main="pass").run()
    assert code != 0 and "without calling its @hydra.main" in outcome["reason"]


def test_streams_are_merged_and_nothing_is_lost_in_a_crash(freeze: Freeze) -> None:
    body = "for i in range(2000): print('line', i, file=sys.stderr if i % 100 == 0 else sys.stdout)\nos._exit(0)"
    frozen = freeze(body, procs=2)
    frozen.run()
    for rank in (0, 1):
        assert frozen.log(rank).splitlines() == [f"line {i}" for i in range(2000)]


def test_log_patterns(freeze: Freeze) -> None:
    logging = Logging(out="out/{num}.{rank}.{host}.txt", err="{job_id}/err.txt")
    frozen = freeze("print('o', RANK); print('e', RANK, file=sys.stderr)", procs=2, logging=logging)
    frozen.run()
    host = os.uname().nodename
    assert [(frozen.paths.root / f"out/0.{r}.{host}.txt").read_text() for r in (0, 1)] == ["o 0\n", "o 1\n"]
    assert sorted((frozen.paths.root / "job0.0" / "err.txt").read_text().splitlines()) == ["e 0", "e 1"]


def test_a_second_attempt_overwrites_nothing(freeze: Freeze) -> None:
    frozen = freeze("print('again')")
    frozen.run()
    frozen.run(HPC_HYDRA_ATTEMPT="20260102-000000-78")
    assert frozen.log() == "again\n" and frozen.outcome()["attempt"] == ATTEMPT  # finish was told the first
    assert frozen.paths.rank_log("20260102-000000-78", 0).read_text() == "again\n"


def test_an_old_outcome_is_gone_while_a_new_attempt_runs(freeze: Freeze) -> None:
    frozen = freeze(SLEEP)
    frozen.paths.root.mkdir()
    frozen.paths.outcome.write_text("{}")
    with frozen.spawn() as spawn:
        here(frozen)
        assert not frozen.paths.outcome.exists()
        spawn.terminate()


def test_umask_and_directory_are_those_of_the_submission(freeze: Freeze) -> None:
    frozen = freeze("Path('made').touch(); print(os.getcwd())", umask=0o077)
    frozen.run()
    assert frozen.log() == f"{frozen.root.parent}\n"
    made = [frozen.root.parent / "made", frozen.paths.outcome, frozen.paths.rank_log(ATTEMPT, 0), frozen.paths.root]
    assert [p.stat().st_mode & 0o077 for p in made] == [0] * 4


def test_variables_that_are_read_at_start_take_effect(freeze: Freeze) -> None:
    env = (EnvVar("PYTHONHASHSEED", "7", "force"), EnvVar("LD_LIBRARY_PATH", "/nowhere", "prepend"))
    body = "print(hash('x'), os.environ['LD_LIBRARY_PATH'].split(':')[0]); sys.stdout.flush(); raise ValueError('told')"
    frozen = freeze(body, plan={"env": env})
    code, outcome = frozen.run()
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('x'))"], env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True,
        text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert frozen.log().splitlines()[0] == f"{expected} /nowhere"
    assert code == 1 and outcome["reason"].endswith("ValueError: told")


def test_too_few_processes_are_refused_naming_host_and_variables(freeze: Freeze) -> None:
    frozen = freeze(procs=4)
    with frozen.rank(0, 2) as rank:
        out, _ = rank.communicate()
    assert rank.returncode == 1
    for text in (out, frozen.finish(1).stdout):
        assert "HPC_HYDRA_SPAWN_SIZE=2" in text and os.uname().nodename in text and "asks for 4" in text


def test_no_task_of_the_scheduler_is_refused(freeze: Freeze) -> None:
    frozen = freeze()
    done = subprocess.run(
        [sys.executable, "-m", "hpc_hydra.node", "rank"], env=frozen.environ(), capture_output=True, text=True
    )
    assert done.returncode == 1 and "not a task of local" in done.stderr


@pytest.mark.parametrize("name", ["SWEEP", "RUN", "ATTEMPT", "SCHEDULER"])
def test_a_missing_variable_is_named(freeze: Freeze, name: str) -> None:
    env = freeze().environ()
    del env[f"HPC_HYDRA_{name}"]
    for what in (["rank"], ["finish", "0"]):
        done = forking.run([sys.executable, "-m", "hpc_hydra.node", *what], env=env)
        assert done.returncode != 0 and f"HPC_HYDRA_{name}" in done.stderr


def test_a_rank_that_waits_in_vain_names_rank_0(freeze: Freeze) -> None:
    frozen = freeze(procs=2, rendezvous=Rendezvous(timeout=1))
    with frozen.rank(1, 2) as rank:
        rank.communicate()
    assert rank.returncode == 1 and "rank 0 on h" in frozen.end(1)["error"] and "rank 0 on h" in frozen.log(1)


@pytest.mark.parametrize(
    "mode",
    [
        {},
        pytest.param({"fork_server": True}, id="fork_server"),
        pytest.param({"name": "torchrun"}, id="torchrun", marks=pytest.mark.torch),
    ],
)
def test_an_error_of_the_rendezvous_is_the_reason_in_the_outcome(freeze: Freeze, mode: dict[str, Any]) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        frozen = freeze(rendezvous=Rendezvous(**{"timeout": 60, "port": port, **mode}))
        code, outcome = frozen.run()
    assert code == 1 and f"port {port} cannot be used on {os.uname().nodename}" in outcome["reason"], outcome


def test_killing_a_supervisor_leaves_no_program(freeze: Freeze) -> None:
    frozen = freeze(SLEEP)
    with frozen.rank(0, 1) as rank:
        program = here(frozen)
        rank.kill()
        assert await_true(lambda: not alive(program))


def test_killing_spawn_leaves_nothing_not_even_grandchildren(freeze: Freeze) -> None:
    body = "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + SLEEP
    frozen = freeze(body, procs=2)
    with frozen.spawn() as spawn:
        here(frozen, 0), here(frozen, 1)
        assert len(frozen.pids()) == 1 + 2 * 3
        spawn.kill()
        assert await_true(lambda: not frozen.pids())


@pytest.mark.parametrize("end", ["return 1", "raise SystemExit(3)"])
def test_what_a_rank_leaves_running_is_ended_with_the_run(freeze: Freeze, end: str) -> None:
    """Without the help of a launch command: some do not know processes whose parent has died."""
    body = f"import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n{end}"
    frozen = freeze(body, procs=2)
    frozen.run()
    assert frozen.pids() == []
    note = "ended 1 process that the program left running: sleep (pid "
    assert (note in frozen.log()) == (end == "return 1")


def test_what_a_rank_leaves_running_stays_until_the_other_ranks_have_ended(freeze: Freeze) -> None:
    body = "import subprocess\nif RANK == 0: subprocess.Popen(['sleep', '600'])"
    frozen = freeze(body, procs=2)
    with frozen.rank(0, 2, "from hpc_hydra.node.rank import left_running; left_running._PATIENCE = 0") as first:
        await_true(frozen.paths.rank_end(ATTEMPT, 0).exists)
        time.sleep(0.3)
        assert first.poll() is None and len(frozen.pids()) == 2
        with frozen.rank(1, 2) as second:
            second.communicate(timeout=120)
        first.communicate(timeout=120)
    assert (first.returncode, second.returncode, frozen.pids()) == (0, 0, [])


@pytest.mark.parametrize("outer", ["", "7"])
def test_a_job_that_the_program_submits_is_none_of_what_it_leaves_running(freeze: Freeze, outer: str) -> None:
    body = (
        "import subprocess\njob = subprocess.Popen(['sleep', '600'], env={**os.environ, 'SLURM_JOB_ID': '8'})\n"
        "Path('job').write_text(str(job.pid))"
    )
    frozen = freeze(body)
    with frozen.rank(0, 1, **({"SLURM_JOB_ID": outer} if outer else {})) as rank:
        rank.wait(timeout=120)
        job = int((frozen.root.parent / "job").read_text())
        assert alive(job)
        os.kill(job, signal.SIGKILL)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_ends_all_ranks_as_stopped(freeze: Freeze, sent: int) -> None:
    frozen = freeze(SLEEP, procs=2)
    with frozen.spawn() as spawn:
        here(frozen, 0), here(frozen, 1)
        spawn.send_signal(sent)
        spawn.communicate(timeout=120)
    assert spawn.returncode == 128 + sent
    assert [frozen.end(r)["told_to_stop"] for r in (0, 1)] == [True, True]
    assert frozen.finish(spawn.returncode).returncode == 128 + sent
    assert (frozen.outcome()["status"], frozen.outcome()["signal"]) == ("cancelled", sent)


def test_a_program_may_end_well_when_told_to_stop_and_counts_as_stopped(freeze: Freeze) -> None:
    frozen = freeze(
        "def bye(*_):\n    time.sleep(0.3); Path('saved').touch(); sys.exit(0)\nsignal.signal(signal.SIGTERM, bye)\n"
        + SLEEP
    )
    with frozen.spawn() as spawn:
        here(frozen)
        spawn.terminate()
        spawn.communicate(timeout=120)
    frozen.finish(spawn.returncode)
    assert (frozen.root.parent / "saved").exists() and frozen.end(0)["exit_code"] == 0
    assert frozen.outcome()["status"] == "cancelled" and frozen.outcome()["exit_code"] == 143


def test_a_warning_reaches_the_program_and_not_the_supervisor(freeze: Freeze) -> None:
    frozen = freeze(
        "got = []\nsignal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n" + HERE + "while not got: time.sleep(0.02)"
        "\nreturn 'warned'",
        procs=2,
    )
    with frozen.spawn() as spawn:
        here(frozen, 0), here(frozen, 1)
        spawn.send_signal(signal.SIGUSR1)
        spawn.communicate(timeout=120)
    frozen.finish(spawn.returncode)
    assert (spawn.returncode, frozen.outcome()["status"], frozen.outcome()["result"]) == (0, "completed", "warned")


def test_a_rank_that_does_not_listen_is_killed_after_a_failure(freeze: Freeze, tmp_path: Path) -> None:
    frozen = freeze(
        "if RANK == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HERE
        + "while not Path('here.0').exists(): time.sleep(0.02)\nif RANK == 1: sys.exit(7)\ntime.sleep(600)",
        procs=2,
    )  # fmt: skip
    code, outcome = frozen.launch(PYTHONPATH=changed(tmp_path / "site", "hpc_hydra.processes", GRACE=2))
    assert (code, outcome["rank"], outcome["exit_code"]) == (7, 1, 7)


def test_a_supervisor_alone_kills_a_program_that_does_not_listen_once_another_failed(freeze: Freeze) -> None:
    """As under a scheduler that signals and waits: nobody but the supervisor escalates."""
    frozen = freeze("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP, procs=2)
    with frozen.rank(0, 2, "from hpc_hydra import processes; processes.GRACE = 2.0") as rank:
        here(frozen)
        write_end(frozen.paths.rank_end(ATTEMPT, 1), RankEnd(1, "x", 7))
        rank.terminate()
        rank.communicate(timeout=120)
    assert rank.returncode == 137 and frozen.end(0)["told_to_stop"]


def test_a_stop_while_waiting_for_rank_0_is_noted(freeze: Freeze) -> None:
    frozen = freeze(procs=2)
    with frozen.rank(1, 2) as rank:
        await_true(lambda: frozen.paths.attempt(ATTEMPT).is_dir())
        time.sleep(0.2)
        rank.terminate()
        rank.communicate(timeout=120)
    assert rank.returncode == 143 and frozen.end(1)["told_to_stop"]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("sh", "-c", "echo $RANK of $WORLD_SIZE; exit 3"), 3),
        (("no-such-program-anywhere",), 127),
        ((__file__,), 126),
        (("sh", "-c", "kill -9 $$"), 137),
    ],
)
def test_a_command_runs_as_it_is(freeze: Freeze, tmp_path: Path, argv: tuple[str, ...], code: int) -> None:
    program = Program("command", argv=argv, cwd=str(tmp_path), pythonpath=(str(ROOT),))
    frozen = freeze(program=program)
    found, outcome = frozen.run()
    assert found == code == outcome["exit_code"]
    if code == 3:
        assert frozen.log() == "0 of 1\n"
    if code == 127:
        assert "no-such-program-anywhere" in frozen.log()


def test_a_job_whose_records_were_replaced_by_another_launch_says_so_and_touches_nothing(freeze: Freeze) -> None:
    frozen = freeze("open('ran', 'w')", launch="bb")
    with frozen.rank(0, 1, HPC_HYDRA_LAUNCH="aa") as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode not in (0, None) and "another launch (bb)" in out and "(aa)" in out, out
    done = frozen.finish(1, HPC_HYDRA_LAUNCH="aa")
    assert done.returncode == 1 and "another launch" in done.stderr
    assert not frozen.paths.root.exists() and not (frozen.root.parent / "ran").exists()
    frozen.env["HPC_HYDRA_LAUNCH"] = "bb"
    assert frozen.run()[0] == 0


CHILD = (
    "import multiprocessing\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,), daemon=True).start()\n"
    "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nreturn RANK + 0.5"
)
THREAD = "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()\nreturn RANK + 0.5"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + THREAD


@pytest.mark.parametrize(
    ("body", "patience", "end", "left"),
    [
        (CHILD, 1, None, "child process"),
        (THREAD, 1, None, "a thread"),
        (CHILD, 600, signal.SIGTERM, "child process"),
        (DEAF, None, signal.SIGTERM, "a thread"),
        (THREAD, None, signal.SIGKILL, "a thread"),
    ],
    ids=["child", "thread", "child at the time limit", "deaf at the time limit", "killed"],
)
def test_a_run_whose_function_has_returned_is_completed_whatever_holds_its_processes(
    freeze: Freeze, tmp_path: Path, body: str, patience: int | None, end: int | None, left: str
) -> None:
    frozen = freeze(body, procs=1 if end else 2, plan={"exit_timeout": patience})
    quick = changed(tmp_path / "site", "hpc_hydra.node.rank.lingering", NOTED_AFTER=0.2, _HURRY=0.5)
    with frozen.spawn(PYTHONPATH=quick) as spawn:
        if end is not None:
            await_true(frozen.paths.rank_end(ATTEMPT, 0).exists)
            spawn.send_signal(end)
        spawn.communicate(timeout=120)
    frozen.finish(spawn.returncode if spawn.returncode >= 0 else 128 - spawn.returncode)
    outcome = frozen.outcome()
    assert (outcome["status"], outcome["result"], outcome["exit_code"]) == ("completed", 0.5, 0)
    assert "rank 0 on" in outcome["reason"] and "had returned" in outcome["reason"] and left in outcome["reason"]
    assert ("stopped by SIGTERM after" in outcome["reason"]) == (end == signal.SIGTERM)
    assert ("did not end: " in outcome["reason"]) == (end != signal.SIGTERM)


def test_a_run_that_is_stopped_while_its_process_exits_says_so(freeze: Freeze) -> None:
    frozen = freeze("import atexit\natexit.register(lambda: (open('leaving', 'w').close(), time.sleep(600)))\nreturn 1")
    with frozen.spawn() as spawn:
        await_true((frozen.root.parent / "leaving").exists)
        spawn.terminate()
        spawn.communicate(timeout=120)
    frozen.finish(spawn.returncode)
    outcome = frozen.outcome()
    assert (outcome["status"], outcome["result"], outcome["exit_code"]) == ("completed", 1, 0)
    assert outcome["reason"].endswith(": stopped by SIGTERM after its function had returned")


def test_an_attempt_that_ends_after_its_run_was_started_again_leaves_the_later_outcome_alone(freeze: Any) -> None:
    frozen = freeze("pass")
    frozen.run()
    frozen.paths.outcome.rename(frozen.paths.closed(ATTEMPT))  # as `resume` does
    frozen.paths.outcome.write_text("later")
    frozen.finish(1)
    assert frozen.paths.outcome.read_text() == "later"
