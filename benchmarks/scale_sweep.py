"""A sweep of 10,000 runs on 1,000 nodes, with the real launcher and a simulated SLURM, in a few minutes.

The launcher, its queries and the records of all runs are real; runs start no process (`_simulated_slurm.py`). The first
runs, one on each node, end in the same moment. Counted: queries, CPU seconds and memory of the launcher (CPU seconds of
the scheduler's commands are told apart), files and bytes of the sweep directory, and what status, results and report
cost afterwards.

    python benchmarks/scale_sweep.py                     10,000 runs, about 6 minutes
    python benchmarks/scale_sweep.py --terminal          with the live table of a terminal
    python benchmarks/scale_sweep.py --small             60 runs on 20 nodes, a few seconds
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import _bench
from _simulated_slurm import Cluster

COMPLETED = re.compile(rb"^run \d+: completed", re.MULTILINE)
TICKS = os.sysconf("SC_CLK_TCK")


class Watched:
    """The launcher while it runs: its output, CPU seconds and memory."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self.process, self.output = process, output
        self.text, self.completed = bytearray(), [(time.time(), 0, 0.0)]  # when, how many, CPU seconds until then
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        count = 0
        while True:
            try:
                data = os.read(self.output, 1 << 16)
            except OSError:  # a terminal whose other end is closed
                return
            if not data:
                return
            count += len(COMPLETED.findall(b"\n" + data))
            self.text += data
            del self.text[:-200_000]
            self.completed.append((time.time(), count, self.cpu()[0]))

    def cpu(self) -> tuple[float, float]:
        """CPU seconds of the launcher, and of the commands that it has run."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0, 0.0
        own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        return own / TICKS, children / TICKS

    def peak(self) -> int:
        """Largest resident set so far, in bytes."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else 0


def launch(options: Any, cluster: Cluster, folder: Path, env: dict[str, str]) -> Watched:
    """Start the launcher of the sweep."""
    app = _bench.make_app(folder, "hpc")
    values = ",".join(f"{number / options.runs:.6f}" for number in range(options.runs))
    command = [sys.executable, str(app), "-m", f"lr={values}", "hydra.sweep.dir=sweep", "scheduler=slurm"]
    command += ["system=local", f"resources.procs_per_node={options.ranks}", "resources.gpus_per_proc=0"]
    command += ["launch.confirm_above=null", *options.override]
    mine, theirs = pty.openpty() if options.terminal else os.pipe()
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    return Watched(process, mine)


def follow(cluster: Cluster, launcher: Watched, options: Any, folder: Path) -> dict[str, Any]:
    """Follow the events of the simulation and the launcher until all runs have ended; return what was counted."""
    begun = launcher.completed[0][0]
    found: dict[str, Any] = {"runs": options.runs, "nodes": options.nodes}
    submitted, ended, first, calls = 0, 0, 0.0, Counter[str]()
    while ended < options.runs:
        event = cluster.event()
        if launcher.process.poll():
            raise SystemExit(f"the launcher failed:\n{launcher.text.decode()[-3000:]}")
        if event["event"] == "submitted":
            submitted += event["runs"]
            if submitted == options.runs:
                found["submitted, s"] = event["time"] - begun
                found["submitted, CPU s"], found["submitted, CPU s of commands"] = launcher.cpu()
                found["submitted, peak bytes"] = launcher.peak()
                found["submitted, files"], found["submitted, bytes"] = usage(folder)
        elif event["event"] == "ended":
            calls = Counter(event["calls"])
            ended += event["runs"]
            if not first:
                first, found["ended at once"] = event["time"], event["runs"]
            print(f"  {ended} of {options.runs} runs have ended", flush=True)
    last = time.time()
    while launcher.process.poll() is None:
        found["CPU s"], found["CPU s of commands"] = launcher.cpu()
        found["peak bytes"] = max(launcher.peak(), found.get("peak bytes", 0))
        time.sleep(0.05)
    launcher.thread.join(10)
    if launcher.process.returncode != 0:
        raise SystemExit(f"exit code {launcher.process.returncode}:\n{launcher.text.decode()[-3000:]}")
    found["launcher after the last end, s"] = time.time() - last
    found["watched, s"] = last - begun - found.get("submitted, s", 0.0)
    found["queries"] = {name: calls[name] for name in ("squeue", "sacct")}
    found["commands"] = dict(calls)
    if not options.terminal:
        before = max((e for e in launcher.completed if e[0] <= first), default=launcher.completed[0])
        noticed = next(e for e in launcher.completed if e[1] >= found["ended at once"])
        found["noticed after, s"], found["noticed, CPU s"] = noticed[0] - first, noticed[2] - before[2]
    return found


def usage(folder: Path) -> tuple[int, int]:
    """Files below a directory, and their bytes as du counts them."""
    files = size = 0
    for root, folders, names in os.walk(folder):
        files += len(names)
        size += sum((Path(root) / name).lstat().st_blocks * 512 for name in [*names, *folders])
    return files, size


def commands(folder: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    """What commands about the finished sweep cost, each twice: the second has an index to read."""
    program = Path(sys.executable).with_name("hpc-hydra")
    lines = []
    for words in (["status"], ["status"], ["results", "--json"], ["report"]):
        used = _bench.measure([program, *words, folder], cwd=folder.parent, env=env)
        lines.append({"command": " ".join(words), "CPU s": used.cpu, "s": used.wall, "peak bytes": used.peak_rss})
        print(f"  hpc-hydra {' '.join(words)}: {used.cpu:.1f} CPU s, {used.peak_rss / 1e6:.0f} MB", flush=True)
    return lines


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--nodes", type=int, default=1000, help="of the simulated machine (default: 1000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that a run takes on average (default: 30)")
    parser.add_argument("--ranks", type=int, default=1, help="of a run (default: 1)")
    parser.add_argument("--steps", type=int, default=5, help="lines in the metrics of a run (default: 5)")
    parser.add_argument("--terminal", action="store_true", help="the launcher writes to a terminal of 120 x 40")
    parser.add_argument("--small", action="store_true", help="60 runs on 20 nodes, 1 s each, to try it")
    parser.add_argument("override", nargs="*", help="further overrides of the sweep")
    options = parser.parse_args()
    if options.small:
        options.runs, options.nodes, options.seconds = 60, 20, 1.0
    with _bench.workplace(options.work) as work:
        cluster, folder = Cluster(work, options.nodes, options.seconds, options.steps), work / "case"
        env = _bench.environment(PATH=f"{cluster.path}:{os.environ['PATH']}", COLUMNS="120", LINES="40")
        try:
            launcher = launch(options, cluster, folder, env)
            found = follow(cluster, launcher, options, folder / "sweep")
            found["files"], found["bytes"] = usage(folder / "sweep")
            found["after"] = commands(folder / "sweep", env)
        finally:
            cluster.end()
    report(found)
    _bench.write_json(options.json, **found)


def report(found: dict[str, Any]) -> None:
    megabytes = {key: f"{value / 1e6:,.1f} MB" for key, value in found.items() if key.endswith("bytes")}
    rows = [
        [key, megabytes.get(key) or (f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")]
        for key, value in found.items()
        if isinstance(value, (int, float))
    ]
    rows += [[f"{name}, calls", f"{count:,}"] for name, count in found["commands"].items()]
    _bench.show("A sweep on a simulated machine", ["", ""], rows)
    rows = [[c["command"], f"{c['CPU s']:.2f}", f"{c['peak bytes'] / 1e6:.0f} MB"] for c in found["after"]]
    _bench.show("Afterwards", ["hpc-hydra", "CPU seconds", "peak memory"], rows)


if __name__ == "__main__":
    main()
