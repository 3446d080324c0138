"""A run that is asked for a checkpoint saves once, on all ranks together, and goes on or ends as asked."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.node.rank.warned import Warned
from hpc_hydra.planning.types import EnvVar, Rendezvous, from_json
from hpc_hydra.records import requests
from hpc_hydra.records.collect import read_ends
from hpc_hydra.records.layout import RunPaths, attempt_name
from hpc_hydra.records.requests import NewRequests
from hpc_hydra.records.requeue_policy import why_again
from hpc_hydra.records.types import Outcome

from .conftest import ATTEMPT, ROOT, Frozen, await_true

Freeze = Callable[..., Frozen]
LIGHT = ROOT / "tests" / "chaos" / "light"  # in place of torch

ONE = """
from hpc_hydra.node.rank import warned
step = 0
while step < 10000:
    step += 1
    time.sleep(0.02)
    Path("steps").write_text(str(step))
    if now := warned.own():
        with open("saved", "a") as file:
            print(step, now.reason, now.stop, now.seconds_left is not None, file=file)
        if now.stop:
            sys.exit(75)
"""

TWO = """
import hpc_hydra
with hpc_hydra.distributed(cfg) as dist:
    for step in range(100000):
        time.sleep(0.02 * (1 + dist.rank))
        if now := dist.any_warned():
            with open(f"saved.{RANK}", "a") as file:
                print(step, now.reason, now.stop, file=file)
            if now.stop:
                sys.exit(75)
        if step == 5:
            Path(f"began.{RANK}").touch()
"""


def read(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def answered(paths: RunPaths) -> list[tuple[int, str]]:
    """What the program did about requests."""
    found = [(each.request, each.word) for each in requests.answers(paths, ATTEMPT)]
    return [(number, word) for number, word in found if word in (requests.SEEN, requests.WENT_ON)]


def by_command(frozen: Frozen) -> None:
    requests.ask(frozen.paths, ATTEMPT, "checkpoint", stop=True)


def by_file_of_the_run(frozen: Frozen) -> None:
    (frozen.paths.root / "STOP").write_text("now")


def by_file_of_the_sweep(frozen: Frozen) -> None:
    (frozen.root / "STOP").touch()


@pytest.mark.parametrize(("stop", "seed"), [(by_command, "3"), (by_file_of_the_run, ""), (by_file_of_the_sweep, "")])
def test_a_program_saves_once_for_each_request_and_ends_when_it_is_asked_to(
    freeze: Freeze, stop: Callable[[Frozen], None], seed: str
) -> None:
    """In a fork of its supervisor; with ``seed``, in an interpreter of its own."""
    frozen = freeze(ONE, plan={"env": (EnvVar("PYTHONHASHSEED", seed, "force"),) if seed else ()})
    frozen.paths.root.mkdir(parents=True)
    (frozen.paths.root / "STOP").touch()  # of an earlier attempt
    here = frozen.root.parent
    with frozen.spawn() as process:
        await_true((here / "steps").exists)
        number = requests.ask(frozen.paths, ATTEMPT, "checkpoint")
        requests.ask(frozen.paths, ATTEMPT, "of another kind")
        await_true(lambda: (number, "went on") in answered(frozen.paths))
        assert len(read(here / "saved")) == 1
        before = len(answered(frozen.paths))
        stop(frozen)
        out, _ = process.communicate(timeout=60)
    saved = [line.split(maxsplit=1)[1] for line in read(here / "saved")]
    assert saved == ["requested False False", "requested True False"], out
    assert len(answered(frozen.paths)) == before + 1 and answered(frozen.paths)[-1][1] == "seen"
    assert (frozen.end(0)["requested"], frozen.end(0)["told_to_stop"], frozen.end(0)["warned"]) == ("stop", True, True)
    assert process.returncode == 0  # or the launch command would end the other ranks
    done = frozen.finish(process.returncode)
    outcome = frozen.outcome()
    assert (done.returncode, outcome["status"], outcome["exit_code"]) == (75, "cancelled", 75)
    assert outcome["reason"] == "stopped on request, after saving a checkpoint"


def test_all_ranks_save_at_the_same_step_and_once_for_each_request(freeze: Freeze) -> None:
    frozen = freeze(TWO, procs=2, rendezvous=Rendezvous(timeout=60), outside=f"sys.path.insert(0, {str(LIGHT)!r})\n")
    here = frozen.root.parent
    with frozen.spawn() as process:
        await_true(lambda: len(list(here.glob("began.*"))) == 2)
        for number in (1, 2):
            assert requests.ask(frozen.paths, ATTEMPT, "checkpoint") == number
            await_true(lambda number=number: (number, "went on") in answered(frozen.paths))
        requests.ask(frozen.paths, ATTEMPT, "checkpoint", stop=True)
        out, _ = process.communicate(timeout=120)
    first, second = read(here / "saved.0"), read(here / "saved.1")
    assert first == second, out
    assert [line.split(maxsplit=1)[1] for line in first] == ["requested False"] * 2 + ["requested True"]
    frozen.finish(process.returncode)
    assert (frozen.outcome()["status"], frozen.outcome()["exit_code"]) == ("cancelled", 75), out


def test_requests_are_read_once_each_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.attempt(ATTEMPT).mkdir(parents=True)
    new = NewRequests(paths.requests(ATTEMPT))
    assert new.read() == []
    assert requests.ask(paths, ATTEMPT, "one", by="me", a=1) == 1
    with paths.requests(ATTEMPT).open("a") as file:
        file.write('[1]\nnot JSON\n{"kind": "unfin')
    (first,) = new.read()
    assert (first.number, first.kind, first.by, first.parameters) == (1, "one", "me", {"a": 1})
    assert new.read() == []
    assert requests.ask(paths, ATTEMPT, "two") == 2
    assert [(each.number, each.kind) for each in new.read()] == [(2, "two")]


def test_what_dist_warned_returns_is_a_flag_with_a_reason() -> None:
    no, yes = Warned(), Warned("time_limit", stop=True, seconds_left=9.5)
    assert (not no, no == False, no.reason, no.stop, no.seconds_left) == (True, True, None, False, None)  # noqa: E712
    assert (bool(yes), yes + 1, json.dumps(int(yes)), yes.reason, yes.seconds_left) == (True, 2, "1", "time_limit", 9.5)
    assert repr(pickle.loads(pickle.dumps(yes))) == "Warned(True, reason='time_limit', stop=True, seconds_left=9.5)"
    assert (f"{no}", str(Warned("requested"))) == ("Warned(False)", "Warned(True, reason='requested', stop=False)")


@pytest.mark.parametrize(("limit", "reason"), [(60, "time_limit"), (3600, "preempted"), (None, "time_limit")])
def test_a_warning_long_before_the_time_limit_is_a_preemption(freeze: Freeze, limit: int | None, reason: str) -> None:
    """The attempt began now; the warning is to come 30 s before its end."""
    body = "os.kill(os.getpid(), 10); now = warned.own(); return [now.reason, now.stop, now.seconds_left is None]"
    frozen = freeze(body, warning="USR1@30", outside="from hpc_hydra.node.rank import warned\n", time_limit=limit)
    frozen.env["HPC_HYDRA_ATTEMPT"] = attempt_name("77", time.time())
    code, outcome = frozen.run()
    assert (code, outcome["result"]) == (0, [reason, True, reason == "preempted" or limit is None])


def test_a_rank_whose_run_is_about_to_be_repeated_ends(freeze: Freeze) -> None:
    """Also one that ignores SIGTERM, and it has not failed by itself."""
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nPath('began').touch()\ntime.sleep(600)"
    frozen = freeze(body)
    with frozen.spawn() as process:
        await_true((frozen.root.parent / "began").exists)
        requests.ask(frozen.paths, ATTEMPT, requests.END)
        process.communicate(timeout=120)
    assert (frozen.end(0)["told_to_stop"], frozen.end(0)["signal"]) == (True, 9)


def test_a_program_that_always_ends_after_saving_is_continued_by_a_requeue_or_by_resume(freeze: Freeze) -> None:
    frozen = freeze(ONE.replace("if now.stop:", "if True:"))
    with frozen.spawn() as process:
        await_true((frozen.root.parent / "steps").exists)
        requests.ask(frozen.paths, ATTEMPT, "checkpoint")
        out, _ = process.communicate(timeout=60)
    assert (frozen.end(0)["requested"], frozen.finish(process.returncode).returncode) == ("save", 75), out
    outcome = from_json(Outcome, frozen.outcome())
    assert (outcome.status, outcome.reason) == ("cancelled", "stopped on request, after saving a checkpoint")
    ends = read_ends(frozen.paths, ATTEMPT)
    assert why_again(outcome, ends) == "saved on request, and exited with code 75"
    assert why_again(outcome, [replace(end, requested="stop") for end in ends]) is None
