"""Operations on the metadata of the file system while ranks start and end, counted by strace.

The same program (Hydra, torch, a barrier) is started by its job script: an interpreter a rank, by the fork server, and
by torchrun. Counted are system calls that name a file (open, stat, mkdir, rename …) and those that list a directory,
apart for the sweep directory, the Python environment, the directory of the program, and everything else (/proc,
/usr/lib, /etc: usually local). Calls on files that are open (fstat, read) are not counted. A line through the counts
gives those of a node and those of a rank; their sum for many nodes is what a metadata server sees, if no client caches.
On several nodes of a SLURM, only the tasks are traced, two a node: a line through the counts gives those of a job and
those of each node.

    python benchmarks/start_metadata.py                  1, 2, 4, 8 ranks on this machine; needs strace
    python benchmarks/start_metadata.py --slurm 1 2 4    also on so many nodes of a SLURM
    python benchmarks/start_metadata.py --small          1 rank, one way
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import _bench

PROGRAM = """
import hydra
import hpc_hydra


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        dist.barrier()


if __name__ == "__main__":
    main()
"""
WAYS = {
    "an interpreter a rank": ["rendezvous.fork_server=null"],
    "fork server": ["rendezvous.fork_server=true"],
    "torchrun": ["rendezvous=torchrun"],
}
EACH = 2  # ranks a node of a SLURM
PLACES = ("sweep", "python", "program", "other")
STRACE = ["strace", "-f", "-y", "-qq", "-s", "4096", "-e", "trace=%file,getdents64"]
CALL = re.compile(r"^\d+\s+(?P<name>\w+)\((?P<rest>.*)$")
DIRECTORY = re.compile(r"^(?:AT_FDCWD|\d+)<(?P<path>[^>]*)>")
NAMED = re.compile(r'"(?P<path>(?:[^"\\]|\\.)*)"')
POLLS = "of which polls for the address"
REQUESTS = ("requests.jsonl", "STOP")
LOOKS = "looks for requests, while it runs"  # a bounded number in a second, of all ranks together
KINDS = {
    "openat": "open", "open": "open", "creat": "create", "getdents64": "list", "mkdir": "make, rename, remove",
    "rename": "make, rename, remove", "unlink": "make, rename, remove", "rmdir": "make, rename, remove",
    "link": "make, rename, remove", "renameat2": "make, rename, remove", "unlinkat": "make, rename, remove",
    "linkat": "make, rename, remove", "symlink": "make, rename, remove", "mkdirat": "make, rename, remove",
}  # fmt: skip


def counted(traces: Sequence[Path], sweep: Path) -> Counter[tuple[str, str]]:
    """Count the calls of traces by place and kind."""
    python = {Path(p) for p in (sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), _bench.ROOT)}
    python |= {path.resolve() for path in python}
    found: Counter[tuple[str, str]] = Counter()
    for trace in traces:
        with trace.open(errors="replace") as lines:
            for line in lines:
                call = CALL.match(line)
                if call is None:  # a signal, or the end of an unfinished call
                    continue
                path = named(call["rest"], is_open=call["name"] == "getdents64")
                if path is None:
                    continue
                kind = KINDS.get(call["name"], "stat")
                kind = "create" if kind == "open" and "O_CREAT" in call["rest"] else kind
                if path.name in REQUESTS or ("O_DIRECTORY" in call["rest"] and "O_NONBLOCK" not in call["rest"]):
                    kind = LOOKS
                found[place(path, sweep, python), kind] += 1
                if path.name.startswith("rendezvous") and "ENOENT" in call["rest"]:
                    found["sweep", POLLS] += 1
    return found


def named(rest: str, *, is_open: bool) -> Path | None:
    """Return the path of a call from its arguments; None for calls on open files."""
    folder, name = DIRECTORY.match(rest), NAMED.search(rest)
    if is_open:
        return Path(folder["path"]) if folder else None
    if name is None or (not name["path"] and "AT_EMPTY_PATH" in rest):
        return None
    return Path(folder["path"] if folder else "/", name["path"])


def place(path: Path, sweep: Path, python: set[Path]) -> str:
    text = os.path.normpath(path)
    for where, folders in (("sweep", {sweep}), ("program", {sweep.parent}), ("python", python)):
        if any(text == str(folder) or text.startswith(f"{folder}/") for folder in folders):
            return where
    return "other"


class Starts:
    """Traced starts of one program."""

    def __init__(self, work: Path) -> None:
        self.case, self.trace = work / "case", work / "trace"
        _bench.make_app(self.case, "hpc", groups=2)
        (self.case / "program.py").write_text(PROGRAM.lstrip())
        self.env = _bench.environment(OMP_NUM_THREADS="1")
        self.number = 0

    def script(self, *overrides: str) -> Path:
        """Write the job script of a sweep of its own; return it."""
        self.number += 1
        sweep = self.case / f"sweep{self.number}"
        argv = [sys.executable, "program.py", "-m", f"hydra.sweep.dir={sweep}", "launch.setup_only=true", *overrides]
        argv += ["resources.gpus_per_proc=0"]
        done = subprocess.run(argv, cwd=self.case, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")
        return sweep / ".hpc_hydra" / "jobs" / "job0.sh"

    def here(self, ranks: int, overrides: Sequence[str]) -> Counter[tuple[str, str]]:
        """Count the calls of all processes of a job on this machine, from its script to its outcome."""
        job = self.script("scheduler=local", f"resources.procs_per_node={ranks}", *overrides)
        return self._traced([*STRACE, "-o", str(self.trace), "bash", str(job), "0"], job)

    def slurm(self, nodes: int, ranks: int, overrides: Sequence[str]) -> Counter[tuple[str, str]]:
        """Count the calls of the tasks of a job on nodes of a SLURM."""
        sizes = [
            f"resources.nodes={nodes}",
            f"resources.procs_per_node={ranks}",
            "resources.time_limit=10",
            "resources.cpus_per_proc=1",
        ]
        job = self.script("scheduler=slurm", *sizes, *overrides)
        text, python = job.read_text(), f"\n  {sys.executable} "
        before, command, after = text.partition(python)
        if not command:
            raise SystemExit(f"{job} does not start ranks by {sys.executable}")
        wrapper = self.case / "traced.sh"
        folder = job.parents[2].with_suffix(".traces")
        folder.mkdir()
        wrapper.write_text(f'#!/bin/bash\nexec {" ".join(STRACE)} -o {folder}/$SLURM_PROCID "$@"\n')
        wrapper.chmod(0o755)
        job.write_text(f"{before}\n  {wrapper} {command.strip()} {after}")
        return self._traced(["sbatch", "--wait", "--parsable", str(job)], job, folder)

    def _traced(self, argv: list[str], job: Path, folder: Path | None = None) -> Counter[tuple[str, str]]:
        done = subprocess.run(argv, cwd=self.case, env=self.env, capture_output=True, text=True, check=False)
        sweep = job.parents[2]
        if done.returncode or not (sweep / "0" / "outcome.json").exists():
            logs = "".join(log.read_text(errors="replace")[-2000:] for log in sweep.rglob("*.log"))
            raise SystemExit(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}{logs}")
        return counted(sorted(folder.iterdir()) if folder else [self.trace], sweep)


def line_through(points: dict[int, int]) -> tuple[float, float]:
    """Return the intercept (of a node, or a job) and the slope (of a rank, or a node) of counts."""
    if len(points) < 2:
        return 0.0, next(iter(points.values())) / next(iter(points))
    slope, intercept = statistics.linear_regression(list(points), list(points.values()))
    return intercept, slope


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], help="on one node (default: 1 2 4 8)")
    parser.add_argument("--slurm", type=int, nargs="*", default=[], metavar="NODES", help=f"with {EACH} ranks each")
    parser.add_argument("--only", nargs="+", choices=WAYS, metavar="WAY", help="only these ways")
    parser.add_argument("--small", action="store_true", help="one rank, to try it")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("this benchmark needs strace. Try: apt-get install strace")
    ways = {name: words for name, words in WAYS.items() if not options.only or name in options.only}
    if options.small:
        options.ranks, ways = [1], dict(list(ways.items())[:1])
    table: list[dict[str, Any]] = []
    with _bench.workplace(options.work, base=Path.cwd()) as work:
        starts = Starts(work)
        for way, overrides in ways.items():
            cases = {("here", 1, ranks): starts.here(ranks, overrides) for ranks in options.ranks}
            cases |= {("slurm", nodes, EACH): starts.slurm(nodes, EACH, overrides) for nodes in options.slurm}
            for (on, nodes, ranks), counts in cases.items():
                by_place = {where: dict.fromkeys((), 0) for where in PLACES}
                for (where, kind), count in counts.items():
                    by_place[where][kind] = count
                totals = {where: total(kinds) for where, kinds in by_place.items()}
                table.append({"way": way, "on": on, "nodes": nodes, "ranks": ranks, "by": by_place, "totals": totals})
            report(way, {f"{on} {nodes} x {ranks}": counts for (on, nodes, ranks), counts in cases.items()})
        summary(table)
        if options.slurm:
            growth(table)
    _bench.write_json(options.json, table=table)


def total(kinds: dict[str, int]) -> int:
    return sum(count for kind, count in kinds.items() if kind not in (POLLS, LOOKS))


def report(way: str, cases: dict[str, Counter[tuple[str, str]]]) -> None:
    keys = sorted({key for counts in cases.values() for key in counts}, key=lambda key: (PLACES.index(key[0]), key[1]))
    rows = [[f"{where}: {kind}", *(f"{counts[where, kind]:,}" for counts in cases.values())] for where, kind in keys]
    _bench.show(f"{way}: calls, nodes x ranks a node", ["", *cases], rows)


def lines_of(table: list[dict[str, Any]], on: str, by: str) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield the calls of each way and place, by the number of nodes or ranks."""
    for way in dict.fromkeys(line["way"] for line in table):
        for where in PLACES:
            found = [line for line in table if (line["way"], line["on"]) == (way, on)]
            yield f"{way}: {where}", {line[by]: line["totals"][where] for line in found}


def summary(table: list[dict[str, Any]], nodes: int = 512, each: int = 8) -> None:
    """Show the calls of a node and of a rank, and of 4,096 ranks on 512 nodes."""
    rows = []
    for name, points in lines_of(table, "here", "ranks"):
        node, rank = line_through(points)
        rows.append([name, f"{node:,.0f}", f"{rank:,.1f}", f"{nodes * (node + each * rank):,.0f}"])
    columns = ["", "a node", "a rank", f"{nodes * each:,} ranks on {nodes} nodes"]
    _bench.show("Calls that name or list files", columns, rows)


def growth(table: list[dict[str, Any]]) -> None:
    """Show how the calls of the tasks grow with the nodes of a SLURM."""
    rows = []
    for name, points in lines_of(table, "slurm", "nodes"):
        job, node = line_through(points)
        rows.append([name, *(f"{count:,}" for count in points.values()), f"{job:,.0f}", f"{node:,.0f}"])
    numbers = [f"{nodes} nodes" for nodes in dict.fromkeys(line["nodes"] for line in table if line["on"] == "slurm")]
    _bench.show(f"Tasks on a SLURM, {EACH} a node", ["", *numbers, "a job", "a node"], rows)


if __name__ == "__main__":
    main()
