"""`python -m tests.chaos --rounds N --seed S --lanes L`: plays rounds in lanes side by side and prints a table.

Must not know: what a round does.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Told = Callable[[str], None]


def lane_environment(name: object) -> dict[str, str]:
    """Variables of a lane's processes: without those of another SLURM."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HPC_HYDRA_CHAOS_LANE": str(name)}
    return {**env, **own}


class Series:
    """Rounds in lanes."""

    def __init__(self, seeds: Sequence[int], lanes: int, base: Path, tell: Told = print, minutes: float = 0) -> None:
        self.seeds: queue.SimpleQueue[int] = queue.SimpleQueue()
        for seed in seeds:
            self.seeds.put(seed)
        self.lanes, self.base, self.tell, self.total = max(1, min(lanes, len(seeds))), base, tell, len(seeds)
        self.reports: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self.end = time.monotonic() + 60 * minutes if minutes else None
        self._starts = threading.Lock()  # one cluster at a time

    def run(self) -> list[dict[str, Any]]:
        threads = [threading.Thread(target=self._lane, args=(number,)) for number in range(self.lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self.reports, key=lambda report: int(report["seed"]))

    def _lane(self, number: int) -> None:
        folder = self.base / f"lane{number}"
        folder.mkdir(parents=True, exist_ok=True)
        argv = ["bash", str(HERE / "lane.sh"), str(folder), sys.executable, "-m", "tests.chaos.lane", str(folder)]
        with (
            (folder / "lane.log").open("ab") as log,
            subprocess.Popen(
                argv,
                cwd=ROOT,
                env=lane_environment(number),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as lane,
        ):
            assert lane.stdin is not None and lane.stdout is not None
            try:
                with self._starts:
                    first = lane.stdout.readline()
                if first != "ready\n":
                    self.broken.append(f"lane {number} did not start: {(folder / 'lane.log').read_text()[-500:]}")
                    return
                self._play(number, lane)
            finally:
                lane.kill()
        shutil.rmtree(folder / "slurm", ignore_errors=True)
        if not self.broken and not list(folder.glob("seed*")):
            shutil.rmtree(folder, ignore_errors=True)

    def _play(self, number: int, lane: subprocess.Popen[str]) -> None:
        assert lane.stdin is not None and lane.stdout is not None
        while self.end is None or time.monotonic() < self.end:
            try:
                seed = self.seeds.get_nowait()
            except queue.Empty:
                return
            lane.stdin.write(f"{seed}\n")
            lane.stdin.flush()
            line = lane.stdout.readline()
            if not line:
                self.broken.append(f"lane {number} ended in the round of seed {seed}")
                return
            report = json.loads(line)
            self.reports.append(report)
            kinds = ", ".join(fault["kind"] for fault in report["faults"] if fault["hit"]) or "no fault hit"
            word = "; ".join(report["wrong"])[:300] or "well"
            head = f"{len(self.reports)}/{self.total} seed {seed} {report['mode']}"
            missed = f" ({report['missed']} missed)" if report["missed"] else ""
            self.tell(f"{head}, {kinds}{missed}, {report['seconds']:.0f} s: {word}")


def table(reports: Sequence[dict[str, Any]]) -> None:
    """Print how the rounds went, by kind of fault."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, highlight=False)
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    drawn: dict[str, int] = defaultdict(int)
    for report in reports:
        for fault in report["faults"]:
            drawn[fault["kind"]] += 1
            if fault["hit"]:
                by_kind[fault["kind"]].append(report)
    well, missed = sum(not r["wrong"] for r in reports), sum(r["missed"] for r in reports)
    shown = Table(title=f"{len(reports)} rounds, {well} survived; {missed} of {sum(drawn.values())} faults hit nothing")
    for name, right in (
        ("fault", False),
        ("drawn", True),
        ("hit", True),
        ("survived", True),
        ("recovery, median", True),
        ("max", True),
    ):
        shown.add_column(name, justify="right" if right else "left")
    for kind in sorted(drawn):
        those = by_kind[kind]
        times = [report["recovery"] for report in those if report["recovery"] is not None]
        survived = sum(not report["wrong"] for report in those)
        median, most = (f"{statistics.median(times):.0f} s", f"{max(times):.0f} s") if times else ("", "")
        shown.add_row(kind, str(drawn[kind]), str(len(those)), str(survived), median, most)
    console.print(shown)
    modes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for report in reports:
        modes[report["mode"]].append(report)
    shown = Table()
    for name in ("mode", "rounds", "survived", "resumes"):
        shown.add_column(name, justify="left" if name == "mode" else "right")
    for mode, those in sorted(modes.items()):
        shown.add_row(
            mode, str(len(those)), str(sum(not r["wrong"] for r in those)), str(sum(r["resumes"] for r in those))
        )
    console.print(shown)
    for report in reports:
        if report["wrong"]:
            console.print(f"seed {report['seed']} ({report['mode']}), {report['folder']}")
            for fault in report["faults"]:
                console.print(f"  {fault['kind']} at {fault['at']:.1f} s: {fault['hit'] or 'hit nothing'}")
            for what in report["wrong"]:
                console.print(f"  violated: {what}")
            console.print(f"  again: make chaos ROUNDS=1 SEED={report['seed']}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the others follow it")
    parser.add_argument("--seeds", type=int, nargs="+", help="these rounds instead")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0, help="begin no further round afterwards")
    parser.add_argument("--dir", type=Path, help="directory of the lanes; those of failed rounds are kept")
    options = parser.parse_args(argv)
    seed = int(time.time()) % 1_000_000 if options.seed is None else options.seed
    base = options.dir or Path(tempfile.mkdtemp(prefix="hpc-hydra-chaos.", dir="/var/tmp"))
    base.mkdir(parents=True, exist_ok=True)
    base.chmod(0o755)  # the database's user looks in
    seeds = options.seeds or range(seed, seed + options.rounds)
    print(f"{len(seeds)} rounds from seed {seeds[0]} in {options.lanes} lanes, {base}", flush=True)
    series = Series(seeds, options.lanes, base, lambda text: print(text, flush=True), options.minutes)
    reports = series.run()
    table(reports)
    for text in series.broken:
        print(text)
    if options.dir is None and not any(report["wrong"] for report in reports):
        shutil.rmtree(base, ignore_errors=True)
    return 1 if series.broken or not reports or any(report["wrong"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
