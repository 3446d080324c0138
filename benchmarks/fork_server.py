"""Start of the ranks of one node until all have met: `rendezvous.fork_server` against an interpreter a rank.

Both run the same job script, on this machine; the clock starts with the script. Ways take turns. Beside seconds stand
the CPU seconds of all processes of the job until then, which hardly depend on who else uses the machine.

    python benchmarks/fork_server.py                     5 rounds of 2, 4 and 8 ranks
    python benchmarks/fork_server.py --ranks 8 --rounds 2
    python benchmarks/fork_server.py --ranks 8 --programs barrier training --cores 1 2 --cold

What is to be gained depends on what is measured. With C cores, R interpreters import on C of them at a time and the
server on one: where importing is all, the ratio is C / R at best, 1/4 for 8 ranks on 2 cores.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import _bench

APP = """
import os, time
import hydra
import hpc_hydra


def cpu_seconds():
    \"\"\"CPU seconds of all processes of this job that are there, and of the children that they have waited for.\"\"\"
    mark, ticks = b"BENCH_STAMP=" + os.environ["BENCH_STAMP"].encode() + b"\\0", 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                ours = mark in file.read()
            if ours:
                with open(f"/proc/{name}/stat") as file:
                    ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        meet(dist)
        dist.barrier()
        if dist.is_main:
            with open(os.environ["BENCH_STAMP"], "w") as file:
                file.write(f"{time.time()} {cpu_seconds()}")
        dist.barrier()


def meet(dist):
    pass
"""
STEP = """

def meet(dist):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
START = """

if __name__ == "__main__":
    main()
"""
PROGRAMS = {"barrier": APP + START, "training": APP + STEP + START}
MEETING = {"barrier": "first barrier", "training": "first step of the optimizer"}
WAYS = {"an interpreter a rank": "null", "fork server": "true"}


def script(case: Path, python: Path, program: str, ranks: int, fork: str, env: dict[str, str]) -> Path:
    """The job script of one way."""
    sweep = case / f"{program}.{ranks}.{fork}"
    argv = [python, f"{program}.py", "-m", "scheduler=local", "launch.setup_only=true", f"hydra.sweep.dir={sweep}"]
    argv += [f"resources.procs_per_node={ranks}", "resources.gpus_per_proc=0", f"rendezvous.fork_server={fork}"]
    subprocess.run(list(map(str, argv)), cwd=case, env=env, check=True, capture_output=True, text=True)
    return sweep / ".hpc_hydra" / "jobs" / "job0.sh"


def started(job: Path, stamp: Path, env: dict[str, str], cores: int | None) -> dict[str, float]:
    """Seconds, and CPU seconds, from the start of the script until its ranks have met."""
    stamp.unlink(missing_ok=True)
    allowed = os.sched_getaffinity(0)
    begun = time.time()
    try:
        if cores is not None:
            os.sched_setaffinity(0, sorted(allowed)[:cores])
        done = subprocess.run(["bash", str(job), "0"], env=env, capture_output=True, text=True, check=False)
    finally:
        os.sched_setaffinity(0, allowed)
    if done.returncode or not stamp.exists():
        raise SystemExit(f"{job} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    when, cpu = map(float, stamp.read_text().split())
    return {"seconds": when - begun, "CPU seconds": cpu}


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="default: 2 4 8")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=["barrier"], help="default: barrier")
    parser.add_argument("--cores", type=int, nargs="+", metavar="N", help="on so many cores (default: all)")
    parser.add_argument("--cold", action="store_true", help="also without bytecode files, as in a read-only image")
    options = parser.parse_args()
    table = []
    with _bench.workplace(options.work, base=Path.cwd()) as work:
        python = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA, also=["torch"])
        case, stamp = work / "case", work / "stamp"
        _bench.make_app(case, "hpc", groups=2)
        for name, text in PROGRAMS.items():
            (case / f"{name}.py").write_text(text.lstrip())
        env = _bench.environment(BENCH_STAMP=stamp, OMP_NUM_THREADS="1")
        cold = {**env, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(work / "no_bytecode")}
        for program in options.programs:
            for ranks in options.ranks:
                jobs = {way: script(case, python, program, ranks, fork, env) for way, fork in WAYS.items()}
                for cores in options.cores or [None]:
                    for variables in (env, cold) if options.cold else (env,):
                        ways = {
                            way: (lambda job=job, v=variables, c=cores: started(job, stamp, v, c))
                            for way, job in jobs.items()
                        }
                        samples = _bench.interleaved(ways, options.rounds)
                        where = f"{ranks} ranks on {cores or len(os.sched_getaffinity(0))} cores"
                        title = f"{where}, script to {MEETING[program]}" + ", no bytecode" * (variables is cold)
                        for quantity in ("seconds", "CPU seconds"):
                            found = _bench.compare(title, samples, quantity, list(WAYS)[:1])
                            table += [{"case": title, **line} for line in found]
    _bench.write_json(options.json, table=table)


if __name__ == "__main__":
    main()
