"""A launcher that is closed, told to end or killed at a random moment, on the real SLURM.

No job is cancelled that should stay, no run is lost, none runs twice. The long form, with any seed:
`ROUNDS=200 SEED=7 SHOW=1 make test ARGS="-s tests/scenarios/test_closed_terminals.py"`
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import select
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import hpc_hydra
from hpc_hydra.errors import SweepError
from tests.awaiting import await_true
from tests.cluster.fixtures import run

ROOT = Path(__file__).parents[2]
ROUNDS, SEED = int(os.environ.get("ROUNDS", "4")), int(os.environ.get("SEED", "1"))
AT_A_TIME = 3
APP = """\
import hydra, os, pathlib, time
def note(word, num):
    with open("noted", "a") as file:
        file.write(f"{word} {num}\\n")
@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    note("began", cfg.x)
    while not pathlib.Path("go").exists():
        time.sleep(0.1)
    note("ended", cfg.x)
main()
"""
WAYS = ("close", "close in a shell", "hang up", "hang up and again", "ctrl-c", "ctrl-c twice", "terminate", "kill")
HUP, INT = signal.SIGHUP, signal.SIGINT


@dataclass
class Round:
    """One launch of two runs, and what is done to it."""

    folder: Path
    number: int
    said: bytes = b""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(f"{SEED}.{self.number}")
        self.way = WAYS[self.number % len(WAYS)]
        self.on_interrupt = chance.choice(("ask", "cancel", "detach"))
        self.answer = chance.choice((b"c\n", b"d\n", None))  # None: the terminal is closed during the question
        self.early, self.moment, self.gap = chance.random() < 0.2, chance.random(), chance.random() * 0.3
        self.sweep = self.folder / "sweep"

    @property
    def stays(self) -> bool:
        """Whether every job has to go on."""
        if self.way in ("ctrl-c", "ctrl-c twice") and self.on_interrupt == "ask":
            return self.way == "ctrl-c" and self.answer != b"c\n"
        return self.way in ("close", "close in a shell", "hang up", "hang up and again", "kill") or (
            self.on_interrupt == "detach"
        )

    def __str__(self) -> str:
        return f"round {self.number} of seed {SEED} ({self.way}, on_interrupt={self.on_interrupt}, {self.answer!r})"

    def launch(self) -> None:
        self.folder.mkdir()
        (self.folder / "app.py").write_text(APP)
        (self.folder / "config.yaml").write_text("defaults: [hpc, _self_]\nx: 0\n")
        limits = "5m" if self.number % 2 else "5m,6m"  # one array, or two jobs
        words = [
            sys.executable, "app.py", "-m", "scheduler=slurm", "resources.gpus_per_proc=0", "resources.cpus_per_proc=1",
            f"resources.time_limit={limits}", "x=0,1" if self.number % 2 else "x=0",
            f"launch.on_interrupt={self.on_interrupt}", "hydra.sweep.dir=sweep",
        ]  # fmt: skip
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
            if self.way == "close in a shell":
                words = ["bash", "--norc", "-ic", '"$@"; true', "bash", *words]
            os.execvp(words[0], words)
        self._meddle(pid, terminal)

    def _meddle(self, pid: int, terminal: int) -> None:
        manifest = self.sweep / ".hpc_hydra" / "manifest.jsonl"
        end = time.monotonic() + 120
        while not self.early and not manifest.exists() and time.monotonic() < end and self._read(terminal, 0.02):
            pass
        until = time.monotonic() + self.moment * (3 if self.early else 1.5)
        while time.monotonic() < until and self._read(terminal, max(0.0, until - time.monotonic())):
            pass
        is_open = True
        if self.way.startswith("close"):
            os.close(terminal)
            is_open = False
        elif self.way.startswith("hang up"):
            for number in (HUP, HUP, signal.SIGCONT) if "again" in self.way else (HUP,):
                _kill(pid, number)
        elif self.way.startswith("ctrl-c"):
            os.write(terminal, b"\x03")
            if "twice" in self.way:
                time.sleep(self.gap)
                os.write(terminal, b"\x03")
        else:
            _kill(pid, signal.SIGTERM if self.way == "terminate" else signal.SIGKILL)
        end, asked = time.monotonic() + 180, False
        while (gone := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            if not is_open:
                time.sleep(0.05)
                continue
            self._read(terminal, 0.05)
            if not asked and b"[w]ait on?" in self.said:
                asked = True
                if self.answer is None:
                    os.close(terminal)
                    is_open = False
                else:
                    os.write(terminal, self.answer)
        if is_open:
            os.close(terminal)
        if gone == (0, 0):
            self.wrong.append("the launcher did not end")
            _kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _read(self, terminal: int, seconds: float) -> bool:
        if select.select([terminal], [], [], seconds)[0]:
            try:
                more = os.read(terminal, 65536)
            except OSError:
                return False
            self.said += more
            return bool(more)
        return True

    def resume(self) -> None:
        """What is not in the queue is submitted; then all may end."""
        try:
            sweep = hpc_hydra.Sweep(self.sweep)
            await_true(lambda: self._resumed(sweep))
        except SweepError as error:
            if "nothing was submitted" not in str(error) and "no such directory" not in str(error):
                self.wrong.append(f"resume: {error}")
        (self.folder / "go").touch()

    @staticmethod
    def _resumed(sweep: Any) -> bool:
        try:
            sweep.resume()
        except SweepError as error:
            if "just created" not in str(error):
                raise
            return False
        return True

    def judge(self, jobs: list[tuple[str, str]]) -> None:
        """``jobs``: id and state, as accounting has them, of all that this round has in the queue."""
        noted = (
            Counter((self.folder / "noted").read_text().split("\n")) if (self.folder / "noted").exists() else Counter()
        )
        noted.pop("", None)
        if not (self.sweep / ".hpc_hydra" / "manifest.jsonl").exists():
            self.wrong += ["jobs without a record"] if jobs or noted else []
            return
        results = hpc_hydra.Sweep(self.sweep).results()
        self.wrong += [f"run {r.num} is {r.state}: {r.reason}" for r in results if r.state != "completed"]
        if sum(count for word, count in noted.items() if word.startswith("ended")) != 2:
            self.wrong.append(f"ends: {dict(noted)}")
        if self.stays:
            if sum(count for word, count in noted.items() if word.startswith("began")) != 2 or len(jobs) != 2:
                self.wrong.append(f"not once each: {dict(noted)}, jobs {jobs}")
            self.wrong += [f"job {id_} is {state}" for id_, state in jobs if state.startswith("CANCELLED")]


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.mark.cluster
@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_whatever_becomes_of_the_launcher_each_run_runs_once(slurm_cluster: Any, tmp_path: Path) -> None:
    rounds = [Round(tmp_path / str(number), number) for number in range(ROUNDS)]
    for first in range(0, ROUNDS, 4 * AT_A_TIME):
        some = rounds[first : first + 4 * AT_A_TIME]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(Round.launch, some))
        for each in some:
            each.resume()
        for each in some:
            with contextlib.suppress(SweepError):
                hpc_hydra.Sweep(each.sweep).wait()
            each.judge(_jobs(each))
        if "SHOW" in os.environ:
            print(f"{first + len(some)} rounds, {sum(bool(r.wrong) for r in rounds)} wrong", flush=True)
            print(*(f"{each}: {each.wrong}\n" for each in some if each.wrong), sep="", end="", flush=True)
    found = [f"{each}: {'; '.join(each.wrong)}\n{each.said.decode(errors='replace')}" for each in rounds if each.wrong]
    assert not found, json.dumps({"wrong": len(found), "of": ROUNDS}) + "\n" + "\n".join(found)


def _jobs(launched: Round) -> list[tuple[str, str]]:
    """Id and state of all jobs of a round, once accounting, which lags, has every job of the record."""
    known: set[str] = set()
    with contextlib.suppress(SweepError):
        known = {result.job_id for result in hpc_hydra.Sweep(launched.sweep).results()} - {""}
    found: dict[str, str] = {}

    def all_ended() -> bool:
        done = run("sacct", "-X", "-n", "-P", "-S", "now-3hours", "-o", "JobID,State,WorkDir")
        lines = [line.split("|") for line in done.stdout.splitlines()]
        found.clear()
        found.update({id_: state for id_, state, where in lines if Path(where) == launched.folder})
        return known <= found.keys() and not {"PENDING", "RUNNING", "COMPLETING"} & set(found.values())

    await_true(all_ended)
    return list(found.items())
