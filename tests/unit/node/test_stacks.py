"""`hpc-hydra stacks` tells what each rank is doing, or why it has no stack, and respects what programs set up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.planning.types import EnvVar, Rendezvous, to_json
from hpc_hydra.records import stacks
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.stacks import Answer, Frame, Thread
from hpc_hydra.records.types import Outcome

from .conftest import Frozen, await_true

Freeze = Callable[..., Frozen]


@contextmanager
def running(frozen: Frozen, *begun: Path, **env: str) -> Iterator[None]:
    """The ranks, once all have left their marks; they are ended afterwards."""
    (frozen.root / ".hpc_hydra" / "jobs").mkdir(exist_ok=True)
    (frozen.root / ".hpc_hydra" / "jobs" / "job0.sh").touch()
    with frozen.spawn(**env) as process:
        try:
            assert await_true(lambda: all(path.exists() for path in begun) or process.poll() is not None)
            assert process.poll() is None, process.communicate()[0]
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def asked(frozen: Frozen, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> str:
    assert main(["stacks", str(frozen.root), "--wait", "60", *options]) == code
    return capsys.readouterr().out


def marks(frozen: Frozen, count: int) -> list[Path]:
    return [frozen.root.parent / f"begun.{rank}" for rank in range(count)]


HANGS = """
import faulthandler, threading
def load():
    time.sleep(600)
def barrier():
    threading.Lock().acquire() and threading.Semaphore(0).acquire()
"""
BODY = """
Path(f"begun.{RANK}").touch()
load() if RANK == 2 else barrier()
"""


@pytest.mark.parametrize("new_image", [False, True], ids=["forked", "in an interpreter of its own"])
def test_the_rank_that_hangs_elsewhere_is_told_from_those_that_wait_for_it(
    freeze: Freeze, capsys: pytest.CaptureFixture[str], new_image: bool
) -> None:
    env = (EnvVar("PYTHONHASHSEED", "1", "default"),) if new_image else ()
    frozen = freeze(BODY, procs=3, outside=HANGS, plan={"env": env})
    with running(frozen, *marks(frozen, 3)):
        text = asked(frozen, capsys)
        assert "2 ranks (0-1 on " in text and "in acquire (train.py:" in text and "threading.Lock().acquire()" in text
        (line,) = [line for line in text.splitlines() if line.startswith("rank 2 on ")]
        assert line.endswith(": time.sleep(600)") and " in load (train.py:" in line
        assert "hpc_hydra" not in text.replace(str(frozen.root.parent), "")  # not how we start programs
        found = json.loads(asked(frozen, capsys, "--rank", "2", "--json"))
    (group,) = found["groups"]
    assert group["ranks"] == [2] and [frame["name"] for frame in group["frames"]] == ["load", "main"]


def test_faulthandler_and_handlers_of_the_program_are_its_own(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 dumps its own stacks on another signal; rank 1 handles ours, which is not taken away."""
    body = """
        if RANK == 0:
            own = open("own.txt", "w")
            faulthandler.enable(own)
            faulthandler.register(signal.SIGUSR2, own)
        else:
            signal.signal(signal.SIGURG, lambda *_: Path("handled").touch())
        Path(f"begun.{RANK}").touch()
        load()
    """
    frozen = freeze(body, procs=2, outside=HANGS)
    with running(frozen, *marks(frozen, 2)):
        text = asked(frozen, capsys)
        assert "rank 0 on " in text and " in load (train.py:" in text
        assert "rank 1 on " in text and "its program did not react to SIGURG" in text
        assert await_true((frozen.root.parent / "handled").exists)
        (zero,) = [pid for pid in frozen.pids() if "own.txt" in str(open_files(pid))]
        os.kill(zero, signal.SIGUSR2)
        own = frozen.root.parent / "own.txt"
        assert await_true(lambda: "in load" in own.read_text())


def open_files(pid: int) -> list[str]:
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(file.readlink()))
        except OSError:
            continue
    return found


SPY = """#!/bin/sh
printf '%0200000d' 0 >&2
printf '%200000s' ''
echo '[{"thread_name": "MainThread", "frames": [{"name": "wait_here", "filename": "/me/job.py", "line": 7}]}]'
"""


@pytest.mark.parametrize("spy", [False, True], ids=["", "py-spy"])
def test_of_a_command_py_spy_tells_the_stack_or_the_kernel_what_it_waits_for(
    freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str], spy: bool
) -> None:
    """It may be a chain of shells, and Python of another environment. py-spy may print more than a pipe holds."""
    code = "import pathlib, time; pathlib.Path('begun.0').touch(); time.sleep(600)"
    command = ("sh", "-c", f'python3 -c "{code}"; true')
    frozen = freeze(program=Program("command", "", argv=command, cwd=str(tmp_path)))
    (tmp_path / "bin").mkdir()
    if spy:
        (tmp_path / "bin" / "py-spy").write_text(SPY)
        (tmp_path / "bin" / "py-spy").chmod(0o755)
    with running(frozen, *marks(frozen, 1), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"):
        text = asked(frozen, capsys)
    if spy:
        assert " in wait_here (job.py:7)" in text
    else:
        assert "without a stack: python3 (pid " in text and "py-spy is not installed on " in text
        assert "\n  Try: pip install py-spy\n" in text


def test_py_spy_has_the_time_that_the_command_waits_and_holds_up_no_later_request(
    freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = freeze('Path("begun.0").touch()\nload()', outside=HANGS)
    hung = tmp_path / "hung"
    hung.mkdir()
    hangs = f"[ $(ls '{hung}' | wc -l) -lt 2 ] && touch '{hung}'/$$ && exec sleep 600"
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(SPY.replace("/sh\n", f"/sh\n{hangs}\n"))
    spy.chmod(0o755)
    with running(frozen, *marks(frozen, 1), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"):
        main(["stacks", str(frozen.root), "--native", "--wait", "6"])
        assert "py-spy did not end within 2 s; wait longer with --wait" in capsys.readouterr().out
        argv = [sys.executable, "-m", "hpc_hydra.cli", "stacks", str(frozen.root), "--native", "--wait", "600"]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as asks:
            assert await_true(lambda: len(list(hung.iterdir())) == 2)
            asks.kill()
        assert " in wait_here (job.py:7)" in asked(frozen, capsys, "--native")


def test_ranks_that_ended_or_do_not_answer_are_named(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    body = 'Path(f"begun.{RANK}").touch()\nif RANK: load()'
    frozen = freeze(body, procs=2, outside=HANGS)
    with running(frozen, *marks(frozen, 2)):
        assert await_true(lambda: frozen.paths.rank_end("20260101-000000-77", 0).exists())
        (supervisor,) = supervisors(frozen)
        os.kill(supervisor, signal.SIGSTOP)
        try:
            assert main(["stacks", str(frozen.root), "--wait", "1"]) == 1
        finally:
            os.kill(supervisor, signal.SIGCONT)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("rank 0 on ") and lines[0].endswith(" has ended (completed)")
        assert lines[1].startswith("rank 1") and lines[1].endswith(" does not answer")
        assert " in load (train.py:" in asked(frozen, capsys)


def test_ranks_that_have_not_started_are_named(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    frozen = freeze(BODY, procs=2, rendezvous=Rendezvous(timeout=600), outside=HANGS)
    (frozen.root / ".hpc_hydra" / "jobs").mkdir(exist_ok=True)
    (frozen.root / ".hpc_hydra" / "jobs" / "job0.sh").touch()
    with frozen.rank(0, 2) as process:
        try:
            assert await_true(marks(frozen, 1)[0].exists)
            assert main(["stacks", str(frozen.root), "--wait", "1", "--rank", "1"]) == 1
            lines = capsys.readouterr().out.splitlines()
            assert [line.endswith(" has not started its program yet") for line in lines] == [True], lines
        finally:
            process.kill()  # its program ends with it


def test_stacks_of_a_run_that_has_ended_are_told_to_be_its_last(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen, attempt = freeze(), "20260101-000000-77"
    (frozen.root / ".hpc_hydra" / "jobs").mkdir(exist_ok=True)
    (frozen.root / ".hpc_hydra" / "jobs" / "job0.sh").touch()
    frozen.paths.attempt(attempt).mkdir(parents=True)
    request = stacks.ask(frozen.paths, attempt)
    stacks.give(frozen.paths, attempt, request, Answer(0, "n1", threads=(Thread((Frame("step", "train.py", 7),)),)))
    write_json(frozen.paths.outcome, to_json(Outcome(0, "cancelled", 1, attempt=attempt)))
    lines = asked(frozen, capsys).splitlines()
    assert lines[0].startswith("run 0 is cancelled; ") and lines[1] == "rank 0 on n1 in step (train.py:7)"


def supervisors(frozen: Frozen) -> list[int]:
    """Supervisors of ranks: parents of programs, and children of what starts the ranks."""
    pids = frozen.pids()
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    return [pid for pid in pids if parents[pid] in pids and pid in parents.values()]


def test_a_supervisor_that_hangs_holds_up_no_other_rank_of_its_node(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them looks for requests; when it hangs, the other does."""
    frozen = freeze('Path(f"begun.{RANK}").touch()\nload()', procs=2, outside=HANGS)
    with running(frozen, *marks(frozen, 2)):
        asked(frozen, capsys)
        for supervisor in supervisors(frozen):
            variables = Path(f"/proc/{supervisor}/environ").read_bytes().split(b"\0")
            rank = 0 if b"HPC_HYDRA_SPAWN_RANK=0" in variables else 1
            os.kill(supervisor, signal.SIGSTOP)
            try:
                text = asked(frozen, capsys, "--rank", str(1 - rank))
            finally:
                os.kill(supervisor, signal.SIGCONT)
            assert f"rank {1 - rank} on " in text and " in load (train.py:" in text


def test_a_request_is_answered_whatever_the_clocks_of_two_machines_say(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once a rank has run for a while: here, a request seems old after 0.1 s."""
    frozen = freeze('Path("begun.0").touch()\nload()', outside=HANGS)
    (frozen.root / ".hpc_hydra" / "jobs").mkdir(exist_ok=True)
    (frozen.root / ".hpc_hydra" / "jobs" / "job0.sh").touch()
    with frozen.rank(0, 1, "from hpc_hydra.records import stacks; stacks.FRESH = 0.1") as rank:
        try:
            assert await_true(marks(frozen, 1)[0].exists)
            assert " in load (train.py:" in asked(frozen, capsys)
        finally:
            for pid in frozen.pids():
                os.kill(pid, signal.SIGKILL)
            rank.communicate(timeout=60)


def test_wrong_usage_is_refused(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    frozen = freeze(procs=2)
    (frozen.root / ".hpc_hydra" / "jobs").mkdir(exist_ok=True)
    (frozen.root / ".hpc_hydra" / "jobs" / "job0.sh").touch()
    cases: list[tuple[list[str], Any]] = [
        (["--rank", "-1"], "-1 is not a rank"),
        ([], "only running ranks have stacks"),
    ]
    for words, message in cases:
        assert main(["stacks", str(frozen.root), *words]) == 2
        assert message in capsys.readouterr().err
    frozen.paths.attempt("20260101-000000-77").mkdir(parents=True)
    assert main(["stacks", str(frozen.root), "--rank", "2"]) == 2
    assert "there is no rank 2" in capsys.readouterr().err
