"""How long `hpc-hydra stacks` takes to name a rank that hangs: seconds from the command until it has ended.

One rank sleeps before a barrier, in which all others wait. The ranks run on nodes of a scheduler, the command on this
machine. Target: ten seconds.

    python benchmarks/stacks.py --scheduler slurm --nodes 2      4 ranks on 2 nodes, 20 times
    python benchmarks/stacks.py --small                          2 ranks on this machine, twice
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import _bench

PROGRAM = """
import time

import hydra
import torch.distributed

import hpc_hydra


def load_data(rank):
    if rank == 1:
        time.sleep(3600)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        print("begun", flush=True)
        load_data(dist.rank)
        torch.distributed.barrier()


if __name__ == "__main__":
    main()
"""
NAMED = re.compile(r"^rank 1 on \S+ in load_data ", re.MULTILINE)
WAITING = re.compile(r"^(?:\d+ ranks|rank) .* in barrier ", re.MULTILINE)
TARGET = 10.0  # seconds
PATIENCE = 300.0  # seconds for the start of the ranks


def begun(sweep: Path) -> int:
    """The number of ranks that are in their program."""
    return sum("begun" in log.read_text(errors="replace") for log in sweep.glob("0/logs/*/rank_*.log"))


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--scheduler", default="local", help="default: local")
    parser.add_argument("--nodes", type=int, default=1, help="default: 1")
    parser.add_argument("--ranks", type=int, default=2, help="on each node (default: 2)")
    parser.add_argument("--times", type=int, default=20, help="default: 20")
    parser.add_argument("--small", action="store_true", help="two times, to try it")
    parser.add_argument("override", nargs="*", help="further overrides of the run")
    options = parser.parse_args()
    times = 2 if options.small else options.times
    with _bench.workplace(options.work, base=Path.cwd()) as work:
        case, sweep = work / "case", work / "case" / "sweep"
        _bench.make_app(case, "hpc", groups=1)
        (case / "program.py").write_text(PROGRAM.lstrip())
        env = _bench.environment(OMP_NUM_THREADS="1", XDG_STATE_HOME=case)
        hpc = str(Path(sys.executable).with_name("hpc-hydra"))

        def call(*words: str, check: bool = True) -> str:
            done = subprocess.run(words, cwd=case, env=env, capture_output=True, text=True, check=False)
            if check and done.returncode:
                raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            return done.stdout + done.stderr

        sizes = [f"resources.nodes={options.nodes}", f"resources.procs_per_node={options.ranks}"]
        sizes += ["resources.cpus_per_proc=1", "resources.gpus_per_proc=0", "resources.time_limit=20m"]
        words = [f"hydra.sweep.dir={sweep}", f"scheduler={options.scheduler}", "launch.bg=true", *sizes]
        call(sys.executable, "program.py", "-m", *words, *options.override)
        try:
            until = time.monotonic() + PATIENCE
            while begun(sweep) < options.nodes * options.ranks:
                if time.monotonic() > until:
                    raise SystemExit(
                        f"not all ranks have begun within {PATIENCE:g} s\n{call(hpc, 'status', str(sweep))}"
                    )
                time.sleep(0.2)
            samples = []
            for number in range(1, times + 1):
                started = time.perf_counter()
                text = call(hpc, "stacks", str(sweep), check=False)
                samples.append(time.perf_counter() - started)
                named = bool(NAMED.search(text) and WAITING.search(text))
                print(f"  {number}/{times}: {samples[-1]:.2f} s, {'named' if named else 'not named'}", flush=True)
                if not named:
                    raise SystemExit(text)
        finally:
            call(hpc, "cancel", str(sweep), "--yes", check=False)
    found = _bench.spread(samples)
    ranks, load = options.nodes * options.ranks, os.getloadavg()[0]
    row = [f"{ranks} ranks on {options.nodes} nodes", *(f"{found[key]:.2f} s" for key in ("median", "min", "max"))]
    _bench.show(
        f"hpc-hydra stacks, {options.scheduler}, load {load:.0f}",
        ["", "median", "shortest", "longest", "target"],
        [[*row, f"{TARGET:g} s"]],
    )
    _bench.write_json(options.json, samples=samples, **found)


if __name__ == "__main__":
    main()
