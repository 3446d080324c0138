"""Plays one round: launches the sweep, does the faults at their times, mends them, completes the sweep as a user does.

Must not know: how faults are drawn, how lanes are made.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import forking
from tests.chaos import faults, reasons, verify, world
from tests.chaos.plan import Fault, Round

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "app"
LIGHT = Path(__file__).parent / "light"
LAUNCHER_ENDS = 240.0  # seconds that the first launcher may take after the last fault
NEVER_BEGINS = 30.0  # seconds after which faults come although no rank has begun
VICTIM_COMES = 30.0  # seconds for which a fault waits for something to hit, as long as there is a job or launcher
SILENT = 120.0  # seconds without a step after which a user takes a job for dead
RESUMES = 8
RESUME_ENDS = 240.0


@dataclass
class Report:
    """How a round went."""

    seed: int
    mode: str
    folder: str
    faults: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missed: int = 0  # faults that found nothing to hit
    ends: list[dict[str, Any]] = field(default_factory=list)  # of runs and attempts that ended, but not well
    attempts: list[int] = field(default_factory=list)  # of each run
    resumes: int = 0
    recovery: float | None = None  # seconds from the last fault until all runs were completed
    seconds: float = 0.0


class Game:
    """One round in a directory of its own."""

    def __init__(self, round_: Round, folder: Path) -> None:
        self.round, self.folder = round_, folder
        self.sweep, self.journal = folder / "sweep", folder / "journal"
        self.report = Report(round_.seed, round_.mode.name, str(folder))
        self.log = (folder / "round.log").open("a", buffering=1)
        self.begun = time.monotonic()
        self.training: float | None = None  # since when a rank has begun
        self.started: list[subprocess.Popen[bytes]] = []  # launchers and others that the user has started
        self.cancelled = False  # by the user

    def say(self, text: str) -> None:
        self.log.write(f"{time.strftime('%H:%M:%S')} +{time.monotonic() - self.begun:.1f} {text}\n")

    @property
    def env(self) -> dict[str, str]:
        paths = [str(ROOT)] if self.round.mode.torch else [str(LIGHT), str(ROOT)]
        own = {name: str(self.folder / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
        keep = {name: value for name, value in os.environ.items() if name != "HPC_HYDRA_CHAOS_LANE"}
        return {**keep, **own, "PYTHONPATH": os.pathsep.join(paths)}

    def launched(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(APP / self.round.mode.app), *self.round.words(self.journal)]
        self.say(" ".join(argv))
        return self._start(argv, "launcher.log")

    def _start(self, argv: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                argv, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def launchers(self) -> list[int]:
        """Pids of all that the user has started and that has not ended."""
        return [process.pid for process in self.started if process.poll() is None]

    def resume(self) -> None:
        """Start `hpc-hydra resume` beside what else there is."""
        if (self.sweep / ".hpc_hydra").is_dir():
            self._start([sys.executable, "-m", "hpc_hydra.cli", "resume", str(self.sweep)], "resume.log")

    def play(self) -> Report:
        before = verify.Machine.now()
        self.launched()
        started = time.monotonic()
        mends: list[tuple[float, faults.Mend, str]] = []
        todo = list(self.round.faults)
        last, tried = started, dict[Fault, float]()
        while todo or mends:
            now = time.monotonic()
            for due in [each for each in mends if each[0] <= now]:
                mends.remove(due)
                due[1]()
                self.say(f"mended: {due[2]}")
            for fault in [each for each in todo if self._is_due(each, started)]:
                hit, mend = faults.ALL[fault.kind](self, fault)
                if not hit and not self._is_in_vain(tried.setdefault(fault, now)):
                    continue
                todo.remove(fault)
                self.say(f"fault: {fault} hit {hit or 'nothing'}")
                self.report.faults.append({**asdict(fault), "hit": hit})
                self.report.missed += not hit
                last = time.monotonic() if hit else last
                if hit and mend is not faults.nothing:
                    mends.append((time.monotonic() + fault.lasts, mend, fault.kind))
            time.sleep(0.05)
        if not world.repair():
            self.report.wrong.append(f"harness: the cluster did not come back: {world.node_states()}")
        self.say("all faults are mended")
        if self.round.mode.name == "torchft":
            self._cancel_what_hangs()
        for number, process in enumerate(list(self.started)):
            self._await(process, LAUNCHER_ENDS, f"resume {number}" if number else "the launcher")
        states = self._completed_by_user()
        self.report.recovery = time.monotonic() - last
        self.report.wrong += verify.left_behind(before, self.folder)
        self.report.ends += [each for each in verify.attempts(self.sweep) if each not in self.report.ends]
        self.report.wrong += reasons.unexplained(self.report.ends, self.hits(), cancelled=self.cancelled)
        self.report.attempts = [len(list(self.sweep.glob(f"{num}/logs/*/"))) for num in range(self.round.runs)]
        if states is not None:
            self.report.wrong += verify.runs(self.round, self.sweep, self.journal, states)
        self.report.seconds = time.monotonic() - self.begun
        return self.report

    def hits(self) -> set[str]:
        """The faults that have hit something."""
        return {fault["kind"] for fault in self.report.faults if fault["hit"]}

    def _is_due(self, fault: Fault, started: float) -> bool:
        now = time.monotonic()
        if fault.begun and self.training is None:
            if any(self.journal.glob("*")):
                self.training = now
            elif now - started < NEVER_BEGINS:
                return False
        return now - ((self.training or started) if fault.begun else started) >= fault.at

    def _is_in_vain(self, tried: float) -> bool:
        """Whether a fault that has waited since ``tried`` will find nothing to hit."""
        over = not self.launchers() and world.jobs() == []
        return over or time.monotonic() - tried > VICTIM_COMES

    def _cancel_what_hangs(self) -> None:
        """SLURM keeps a job with `--no-kill` whose first node was lost as its groups ended: the user cancels it."""
        lost_first = bool(self.hits() & {"kill_node", "cut_link"})

        def is_silent() -> bool:
            newest = max((path.stat().st_mtime for path in self.journal.glob("*")), default=time.time())
            return time.time() - newest > SILENT

        if lost_first:
            world.await_true(lambda: is_silent() or not self.launchers(), LAUNCHER_ENDS)
            if self.launchers() and any(job.state == "RUNNING" for job in world.jobs() or ()):
                self.say("the job hangs: cancelled")
                self.cancelled = True
                argv = [sys.executable, "-m", "hpc_hydra.cli", "cancel", str(self.sweep)]
                subprocess.run(argv, env=self.env, timeout=120, capture_output=True, check=False)

    def _await(self, process: subprocess.Popen[bytes], seconds: float, what: str) -> bool:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.report.wrong.append(f"{what} did not end within {seconds:g} s")
            self.say(f"{what} hangs: killed")
            process.kill()
            process.wait()
            return False
        self.say(f"{what} ended with {code}")
        return True

    def _states(self) -> list[dict[str, Any]] | None:
        """What `hpc-hydra status` says; None if it says nothing that can be read."""
        argv = [sys.executable, "-m", "hpc_hydra.cli", "status", str(self.sweep), "--json"]
        done = forking.run(argv, env=self.env, timeout=120, cwd=self.folder)
        if done.returncode:
            self.say(f"status: {done.returncode} {done.stdout}{done.stderr}")
            return None
        found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
        return found

    def _command(self, name: str) -> int | None:
        """How a command on the sweep ended; None if it did not."""
        argv = [sys.executable, "-m", "hpc_hydra.cli", name, str(self.sweep)]
        try:
            done = forking.run(argv, env=self.env, timeout=RESUME_ENDS, cwd=self.folder)
        except subprocess.TimeoutExpired:
            self.report.wrong.append(f"{name} did not end within {RESUME_ENDS:g} s")
            return None
        with (self.folder / "resume.log").open("a") as out:
            out.write(done.stdout + done.stderr)
        self.say(f"{name} ended with {done.returncode}")
        return done.returncode

    def _completed_by_user(self) -> list[dict[str, Any]] | None:
        """Call `hpc-hydra resume` until nothing is missing, and once more, which must do nothing."""
        for number in range(RESUMES):
            states = self._states()
            if states is None and not (self.sweep / ".hpc_hydra" / "manifest.jsonl").exists():
                self.say("nothing was submitted: launched again")
                if not self._await(self.launched(), LAUNCHER_ENDS, "the second launcher"):
                    return None
                continue
            open_ = [state for state in states or () if state["state"] != "completed"]
            for state in open_:
                self.say(f"run {state['run']} {state['state']}: {state['reason']}")
                self.report.ends += verify.ended(state)
            if states is not None and not open_ and number:
                return states
            self.report.resumes += bool(open_) or states is None
            if (code := self._command("resume")) is None:
                return self._states()
            if code == 2:
                time.sleep(5)
            active = any(state["state"] in ("pending", "running") for state in open_)  # there is nothing to resume
            if active and self._command("wait") is None:
                return self._states()
        self.report.wrong.append(f"after {RESUMES} times resume it is not completed")
        return self._states()


def play(round_: Round, base: Path) -> Report:
    """Play a round below ``base``. Its directory is removed if all is well; the cluster is as new afterwards."""
    folder = base / f"seed{round_.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    game = Game(round_, folder)
    try:
        report = game.play()
    except Exception:
        report = game.report
        report.wrong.append(f"harness: {traceback.format_exc()}")
    clean(folder)
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=1))
    if not report.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def clean(folder: Path) -> None:
    """End all that is left of a round."""
    world.repair()
    ids = [job.id for job in world.jobs() or ()]
    if ids:
        world.call("scancel", *ids)
    for each in world.processes():
        if str(folder) in " ".join(each.words) or each.env.get("HPC_HYDRA_SWEEP", "").startswith(str(folder)):
            each.kill(signal.SIGKILL)
    world.await_true(lambda: world.jobs() == [], 60)
    for name in world.NODES:
        world.node("exec", name, "find", "/tmp", "/dev/shm", "-mindepth", "1", "-delete")
