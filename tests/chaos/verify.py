"""What has to hold at the end of a round: compares journals of the programs, records of the sweep and the machine.

Must not know: which faults there were.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import world
from tests.chaos.app.answers import answer
from tests.chaos.plan import Round


@dataclass(frozen=True)
class Lifetime:
    """All that the ranks of one attempt of a run noted."""

    run: int
    attempt: str
    events: tuple[dict[str, Any], ...]

    @property
    def begun(self) -> float:
        return min(float(event["time"]) for event in self.events)

    @property
    def ended(self) -> float:
        return max(float(event["time"]) for event in self.events)


def lifetimes(journal: Path) -> dict[int, list[Lifetime]]:
    """By run, in order of their beginning."""
    events: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for path in journal.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            events[event["run"], event["attempt"]].append(event)
    found: dict[int, list[Lifetime]] = defaultdict(list)
    for (run, attempt), those in events.items():
        found[run].append(Lifetime(run, attempt, tuple(sorted(those, key=lambda event: event["time"]))))
    return {run: sorted(those, key=lambda life: life.begun) for run, those in found.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def runs(round_: Round, sweep: Path, journal: Path, states: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the runs of a sweep of which `hpc-hydra status` tells these states."""
    wrong = []
    lives = lifetimes(journal)
    if len(states) != round_.runs:
        wrong.append(f"lost: the sweep has {len(states)} of {round_.runs} runs")
    submitted = _submitted(sweep)
    for state in states:
        num = int(state["run"])
        outcome = _read(sweep / str(num) / "outcome.json")
        if state["state"] != "completed" or outcome.get("status") != "completed":
            wrong.append(f"run {num}: {state['state']} ({state.get('reason')}), outcome {outcome.get('status')}")
            continue
        right = answer(num + 1, round_.steps, round_.mode.adding or round_.world_size)
        result = outcome.get("result") or {}
        if result.get("weights") != right or result.get("step") != round_.steps:
            wrong.append(f"run {num}: wrong answer {result} instead of {right}")
        wrong += _attempts(num, sweep, outcome, lives.get(num, []), submitted)
    return wrong


def _attempts(
    num: int, sweep: Path, outcome: dict[str, Any], lives: list[Lifetime], submitted: dict[str, set[int]]
) -> list[str]:
    wrong = []
    if not lives:
        return [f"run {num} is completed, and no rank of it has noted anything"]
    for before, after in itertools.pairwise(lives):
        if before.ended > after.begun:
            wrong.append(
                f"run {num} ran twice at once: {before.attempt} was active {before.ended - after.begun:.2f} s after "
                f"{after.attempt} had begun"
            )
        if _completed(sweep / str(num) / "logs" / before.attempt):
            wrong.append(f"run {num} was repeated by {after.attempt} although {before.attempt} had completed")
    if outcome["attempt"] not in [life.attempt for life in lives]:
        wrong.append(f"run {num}: its outcome is of {outcome['attempt']}, which has not noted anything")
    elif not any(e["event"] == "done" for life in lives if life.attempt == outcome["attempt"] for e in life.events):
        wrong.append(f"run {num}: completed by {outcome['attempt']}, whose ranks did not get to the end")
    for life in lives:
        job = life.attempt.split("-", 2)[-1]
        if num not in submitted.get(job.partition("_")[0], set()):
            wrong.append(f"run {num}: the manifest knows no job {job} of it")
    return wrong


def _completed(folder: Path) -> bool:
    """Whether all ranks of an attempt have recorded that they ended well, or its outcome says so."""
    if _read(folder / "outcome.json").get("status") == "completed":
        return True
    if (folder / "replicas.json").exists():
        return _read(folder / "replicas.json").get("status") == "completed"
    ends = [_read(path) for path in folder.glob("rank_*.end.json")]
    size = max((int(event.get("world_size") or 0) for event in [_read(folder / "rendezvous.json")]), default=0)
    well = {end.get("rank") for end in ends if end.get("exit_code") == 0 and not end.get("told_to_stop")}
    return bool(size) and len(well) == size


def ended(state: dict[str, Any]) -> list[dict[str, Any]]:
    """How a run ended by what `hpc-hydra status` says, unless it is active or has completed."""
    if state["state"] not in ("failed", "cancelled", "timeout", "lost"):
        return []
    return [{"run": state["run"], "attempt": "", "state": state["state"], "reason": state["reason"] or ""}]


def attempts(sweep: Path) -> list[dict[str, Any]]:
    """How the attempts of all runs ended that were queued again."""
    found = []
    for path in sorted(sweep.glob("*/logs/*/outcome.json")):
        outcome = _read(path)
        if outcome.get("status") not in (None, "completed"):
            run, attempt = path.parts[-4], path.parts[-2]
            found.append(
                {"run": int(run), "attempt": attempt, "state": outcome["status"], "reason": outcome["reason"] or ""}
            )
    return found


def _submitted(sweep: Path) -> dict[str, set[int]]:
    """The runs of each job id in the manifest."""
    found: dict[str, set[int]] = defaultdict(set)
    pairs: dict[str, list[int]] = {}
    for line in (sweep / ".hpc_hydra" / "manifest.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "submitting":
            pairs[event["job"]] = [n for first, last in event["runs"] for n in range(first, last + 1)]
        if event["event"] == "submitted":
            for id_ in event["ids"]:
                found[str(id_).partition("+")[0].partition("_")[0]].update(pairs.get(event["job"], ()))
    return found


@dataclass
class Machine:
    """What was there before the round."""

    pids: frozenset[int]
    ports: dict[str | None, set[str]]
    files: dict[str | None, set[str]]

    @classmethod
    def now(cls) -> Machine:
        places = (None, *world.NODES)
        return cls(
            frozenset(each.pid for each in world.processes() if _counts(each)),
            {place: world.ports(place) for place in places},
            {place: world.leavings(place) for place in places},
        )


_DAEMONS = ("slurmctld", "slurmdbd", "slurmd", "munged", "mariadbd", "slurmscriptd")


def _counts(process: world.Process) -> bool:
    return bool(process.words) and "HPC_HYDRA_CHAOS_LANE" not in process.env


def left_behind(before: Machine, root: Path) -> list[str]:
    """What the round has left on the machine. Waits for what is about to end, and for jobs that SLURM has requeued in
    their last moment: they start, and end at once.
    """
    world.await_true(lambda: world.jobs() == [], 40)
    world.await_true(lambda: not _left(before, root), 20)
    return _left(before, root)


def _left(before: Machine, root: Path) -> list[str]:
    now = Machine.now()
    wrong = []
    for each in world.processes():
        if "HPC_HYDRA_ATTEMPT" in each.env or "HPC_HYDRA_SWEEP" in each.env or str(root) in " ".join(each.words):
            wrong.append(f"left: process {each.pid} {' '.join(each.words)[:120]}")
    for place in before.ports:
        new = now.ports[place] - before.ports[place]
        wrong += [f"left: port {port} on {place or 'the login node'}" for port in sorted(new)]
        files = now.files[place] - before.files[place]
        wrong += [f"left: {file} on {place or 'the login node'}" for file in sorted(files)]
    wrong += [f"left: job {job.id} is {job.state}" for job in world.jobs() or ()]
    return wrong
