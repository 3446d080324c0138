"""A run that is warned goes on in a further attempt on Flux, PBS (resubmitted) and LSF (requeued): on the stand-ins.

With `--scheduler=flux`, on the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import forking
from tests.awaiting import await_true
from tests.fakes.chosen import stand_in
from tests.fakes.commands import Fakes
from tests.fakes.scheduler_state import ENDED, Cluster

from .conftest import Probe
from .test_coming_back import SMALL, hpc, runs, states
from .test_requeue import attempts, outcome

PATIENCE = 240.0  # seconds
KILL = {"flux": ["flux", "job", "kill", "-s", "USR1"], "lsf": ["bkill", "-s", "USR1"]}
CANCEL = {"flux": ["flux", "cancel"], "lsf": ["bkill", "-s", "TERM"], "pbs": ["qdel"]}


SAVES = """
cd "$1"; [ "$(ls | grep -c "^$RANK[.]")" -lt 2 ] || exit 0
warned=0; trap 'warned=$((warned + 1))' USR1; touch "begun.$RANK"
while [ $warned = 0 ]; do sleep 0.2; done
trap '' USR1 # a second one would end rm
rm "begun.$RANK"; echo "$warned $HPC_HYDRA_SEED" >"$RANK.$HPC_HYDRA_ATTEMPT"; exit 75
"""


class Saving(Probe):
    """A program that saves when it is warned, and ends by itself after two times."""

    cluster: object = None

    @property
    def saved(self) -> Path:
        return self.tmp / "saved"

    def command(self, *args: str) -> list[str]:
        return [
            sys.executable, "-m", "hpc_hydra.cli", "run", "--fill", "-m", f"scheduler={self.scheduler}",
            "resources.procs_per_node=2", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0",
            "resources.time_limit=20m", "launch.signal_before_end=2m", *args, f"hydra.sweep.dir={self.sweep}",
            "--", "sh", "-c", SAVES, "sh", str(self.saved),
        ]  # fmt: skip

    def begun(self) -> bool:
        return len(list(self.saved.glob("begun.*"))) == 2

    def warn(self) -> None:
        """What the scheduler does before the time limit."""
        assert await_true(self.begun)
        before = len(list(self.saved.glob("[01].*")))
        if self.scheduler in KILL:
            self.tell(KILL[self.scheduler])
        else:
            self.warn_from_within()
        assert await_true(lambda: len(list(self.saved.glob("[01].*"))) == before + 2)

    def warn_from_within(self) -> None:
        """What the job does itself, where the scheduler does not warn."""
        assert isinstance(self.cluster, Cluster)
        for pid in self.cluster.members():
            with suppress(FileNotFoundError):  # it has ended
                if b"\0timed\0" in Path("/proc", str(pid), "cmdline").read_bytes():
                    os.kill(pid, signal.SIGUSR1)

    def tell(self, command: list[str]) -> None:
        (view,) = runs(self)
        subprocess.run([*command, view["job_id"]], check=True, capture_output=True, timeout=200)


@pytest.fixture(params=["flux", "lsf", "pbs"])
def saving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Saving]:
    probe = Saving(tmp_path, request.param)
    probe.cluster = stand_in(request, request.param)
    probe.saved.mkdir()
    yield probe


def test_a_run_that_is_warned_saves_and_goes_on_until_it_ends_or_a_person_ends_it(saving: Saving) -> None:
    """At first without a launcher; then counted anew, with one."""
    background = saving.command("launch.max_requeues=1", "launch.bg=true")
    done = forking.run(background, env=saving.env(), cwd=saving.tmp, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    saving.warn()
    assert await_true(saving.begun)
    saving.tell(CANCEL[saving.scheduler])
    assert await_true(lambda: states(saving) == ["cancelled"]) and len(attempts(saving)) == 2
    for begun in saving.saved.glob("begun.*"):
        begun.unlink()
    resume = [sys.executable, "-m", "hpc_hydra.cli", "resume", str(saving.sweep)]
    with saving.started(argv=resume) as launcher:
        saving.warn()
        text, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0 and "1 of 1 run is submitted again" in text, text
    first, _, third, last = attempts(saving)
    ended = outcome(saving.sweep / "0")
    assert (ended["status"], ended["requeues"], ended["attempt"]) == ("completed", 1, last.name)
    assert all(outcome(path)["reason"].startswith("warned that its time is up; rank ") for path in (first, third))
    told = [(saving.saved / f"{rank}.{path.name}").read_text().split() for rank in (0, 1) for path in (first, third)]
    assert len({seed for _, seed in told}) == 1, told
    assert {times for times, _ in told} <= {"1", "2"}  # twice where the scheduler tells all, and ours hand it on


STEP = """
cd "$1"; echo {x} >>began; [ ! -e once.{x} ] || exit 0
trap 'exit 75' USR1; touch once.{x}
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize(("submitted", "packed"), [(True, False), (False, True)], ids=["after", "before, packed"])
def test_a_job_that_is_killed_while_it_is_queued_again_has_one_successor_or_is_told(
    fake_flux: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: bool, packed: bool
) -> None:
    """At the time limit: right after, or just before, the queue has taken the job that goes on."""
    kill = f'[ "$1$#" != batch7 ] || {{ {"$REAL $@;" * submitted} kill -KILL 0; }}; exec "$REAL" "$@"'
    Fakes(tmp_path / "wrapped", monkeypatch).put("flux", kill)
    probe = Probe(tmp_path, "flux")
    given = ["resources.time_limit=20m", "launch.signal_before_end=2m", "launch.max_requeues=1"]
    given += ["+x=0,1", "launch.pack=2", "launch.allocations=1"] if packed else ["+x=0"]
    argv = [sys.executable, "-m", "hpc_hydra.cli", "run", "--fill", "-m", "scheduler=flux", *SMALL, *given]
    argv += [f"hydra.sweep.dir={probe.sweep}", "--", "sh", "-c", STEP, "sh", str(tmp_path)]
    with probe.started(argv=argv) as launcher:
        assert await_true(lambda: len(list(tmp_path.glob("once.*"))) == 1 + packed)
        first = runs(probe)[0]["job_id"].partition("+")[0]
        subprocess.run(["flux", "job", "kill", "-s", "USR1", first], check=True, capture_output=True, timeout=200)
        text, _ = launcher.communicate(timeout=PATIENCE)
    found = runs(probe)
    if submitted:
        before, after = fake_flux.jobs()
        assert after.started >= before.ended
        assert launcher.returncode == 0 and outcome(probe.sweep / "0")["job_id"] != first, text
    else:
        assert launcher.returncode == 1 and "ended before it was queued again" in found[0]["reason"], text
        assert all("never started" not in run["reason"] and run["attempt_name"] for run in found)
        hpc(probe, "resume")
        found = runs(probe)
    assert {run["state"] for run in found} == {"completed"}
    assert (tmp_path / "began").read_text().split().count("0") == 2


def test_a_successor_that_begins_while_it_is_given_up_is_the_one_that_goes_on(
    fake_flux: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue takes it, and it begins, between the answer that there is none and the decision."""
    late, begun = tmp_path / "late", tmp_path / "begun"
    asks = f"""printf '%q ' "$REAL" "$@" >{late}; kill -KILL 0"""
    slow = f'"$REAL" "$@"; . {late}; rm {late}; until [ -e {begun} ]; do sleep 0.1; done; exit'
    cases = f'case "$1$#" in batch7) {asks} ;; jobs6) [ ! -e {late} ] || {{ {slow}; }} ;; esac; exec "$REAL" "$@"'
    Fakes(tmp_path / "wrapped", monkeypatch).put("flux", cases)
    probe = Probe(tmp_path, "flux")
    given = ["resources.time_limit=20m", "launch.signal_before_end=2m", "launch.max_requeues=1", "launch.bg=true"]
    argv = [sys.executable, "-m", "hpc_hydra.cli", "run", "--fill", "-m", "scheduler=flux", *SMALL, *given]
    argv += [f"hydra.sweep.dir={probe.sweep}", "--", "sh", "-c", ONCE, "sh", str(tmp_path)]
    forking.run(argv, env=probe.env(), cwd=tmp_path, timeout=PATIENCE).check_returncode()
    assert await_true((tmp_path / "once").exists)
    first = runs(probe)[0]["job_id"]
    subprocess.run(["flux", "job", "kill", "-s", "USR1", first], check=True, capture_output=True, timeout=200)
    ended = ["flux", "job", "wait-event", first, "clean"]
    subprocess.run(ended, check=True, capture_output=True, timeout=PATIENCE)
    assert "nothing to resume: run 0 is in the queue" in hpc(probe, "resume", "--bg")
    (tmp_path / "ends").touch()
    assert await_true((probe.sweep / "0" / "outcome.json").exists)
    (run,) = runs(probe)
    assert (run["state"], run["job_id"] != first) == ("completed", True)
    assert len(list((probe.sweep / "0" / "logs").glob("2*"))) == 2


ONCE = """
cd "$1"
if [ -e once ]; then touch begun; until [ -e ends ]; do sleep 0.1; done; exit 0; fi
trap 'exit 75' USR1; touch once
while :; do sleep 0.1; done
"""


ENDLESS = """
cd "$1"; echo {x} >>began; [ ! -e once.{x} ] || exec sleep 600
trap 'exit 75' USR1; touch once.{x}
while :; do sleep 0.1; done
"""
TOLD = """echo '{"name": "exception", "context": {"type": "cancel", "severity": 0}}'; exit"""


@pytest.mark.parametrize(
    ("when", "packed"),
    [
        ("queued", False), ("on its way", True), ("answered", False), ("answered", True), ("by hand", False),
        ("by hand", True),
    ],
)  # fmt: skip
def test_a_run_that_is_cancelled_while_it_is_queued_again_reads_cancelled_and_none_of_its_jobs_survives(
    fake_flux: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, packed: bool
) -> None:
    probe = Probe(tmp_path, "flux")
    asking, late = tmp_path / "asking", tmp_path / "late"
    decided = f'"$(echo {probe.sweep}/.hpc_hydra/jobs/*.next)"'
    batch = {
        "queued": f'"$REAL" "$@"; touch {asking}; exec sleep 600',
        "on its way": f"""printf '%q ' "$REAL" "$@" >{late}; touch {asking}; exec sleep 600""",
        "answered": f'touch {asking}; until [ -e {decided} ]; do sleep 0.05; done; exec "$REAL" "$@"',
        "by hand": f'touch {asking}; exec "$REAL" "$@"',
    }[when]
    eventlog = f"[ ! -e {asking} ] || {{ {TOLD}; }}" if when == "by hand" else ""
    cases = f'case "$1$#" in batch7) {batch} ;; esac; case "$1$2" in jobeventlog) {eventlog} ;; esac; exec "$REAL" "$@"'
    Fakes(tmp_path / "wrapped", monkeypatch).put("flux", cases)
    given = ["resources.time_limit=20m", "launch.signal_before_end=2m", "launch.max_requeues=1", "launch.bg=true"]
    given += ["+x=0,1", "launch.pack=2", "launch.allocations=1"] if packed else ["+x=0"]
    argv = [sys.executable, "-m", "hpc_hydra.cli", "run", "--fill", "-m", "scheduler=flux", *SMALL, *given]
    argv += [f"hydra.sweep.dir={probe.sweep}", "--", "sh", "-c", ENDLESS, "sh", str(tmp_path)]
    forking.run(argv, env=probe.env(), cwd=tmp_path, timeout=PATIENCE).check_returncode()
    assert await_true(lambda: len(list(tmp_path.glob("once.*"))) == 1 + packed)
    (first,) = fake_flux.jobs()
    subprocess.run(["flux", "job", "kill", "-s", "USR1", first.id], check=True, capture_output=True, timeout=200)
    assert await_true(asking.exists)
    if when != "by hand":
        hpc(probe, "cancel")
    if when == "on its way":
        subprocess.run(["bash", late], check=True, capture_output=True, timeout=PATIENCE)
    assert await_true(lambda: {job.state for job in fake_flux.jobs()} == {ENDED})
    assert await_true(lambda: set(states(probe)) == {"cancelled"}), runs(probe)
    if when in ("on its way", "answered"):
        assert sorted((tmp_path / "began").read_text().split()) == ["0", "1"][: 1 + packed]
