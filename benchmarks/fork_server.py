"""Start of the ranks of one node to their first barrier: `rendezvous.fork_server` against an interpreter a rank.

Both run the same job script, on this machine; the clock starts with the script. Ways take turns.

    python benchmarks/fork_server.py                     5 rounds of 2, 4 and 8 ranks
    python benchmarks/fork_server.py --ranks 8 --rounds 2
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import _bench

APP = """
import os, time
import hydra
import hpc_hydra


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        dist.barrier()
        if dist.is_main:
            with open(os.environ["BENCH_STAMP"], "w") as file:
                file.write(str(time.time()))


if __name__ == "__main__":
    main()
"""
WAYS = {"an interpreter a rank": "null", "fork server": "true"}


def script(case: Path, python: Path, ranks: int, fork: str, env: dict[str, str]) -> Path:
    """The job script of one way."""
    sweep = case / f"{ranks}.{fork}"
    argv = [python, "app.py", "-m", "scheduler=local", "launch.setup_only=true", f"hydra.sweep.dir={sweep}"]
    argv += [f"resources.procs_per_node={ranks}", "resources.gpus_per_proc=0", f"rendezvous.fork_server={fork}"]
    subprocess.run(list(map(str, argv)), cwd=case, env=env, check=True, capture_output=True, text=True)
    return sweep / ".hpc_hydra" / "jobs" / "job0.sh"


def seconds(job: Path, stamp: Path, env: dict[str, str]) -> float:
    """From the start of the script to the ranks' first barrier."""
    stamp.unlink(missing_ok=True)
    begun = time.time()
    done = subprocess.run(["bash", str(job), "0"], env=env, capture_output=True, text=True, check=False)
    if done.returncode or not stamp.exists():
        raise SystemExit(f"{job} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return float(stamp.read_text()) - begun


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="default: 2 4 8")
    options = parser.parse_args()
    table = []
    with _bench.workplace(options.work, base=Path.cwd()) as work:
        python = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA, also=["torch"])
        case, stamp = work / "case", work / "stamp"
        _bench.make_app(case, "hpc", groups=2)
        (case / "app.py").write_text(APP.lstrip())
        env = _bench.environment(BENCH_STAMP=stamp, OMP_NUM_THREADS="1")
        for ranks in options.ranks:
            jobs = {way: script(case, python, ranks, fork, env) for way, fork in WAYS.items()}
            ways = {way: (lambda job=job: {"seconds": seconds(job, stamp, env)}) for way, job in jobs.items()}
            samples = _bench.interleaved(ways, options.rounds)
            table += _bench.compare(f"{ranks} ranks, script to barrier", samples, "seconds", list(WAYS)[:1])
    _bench.write_json(options.json, table=table)


if __name__ == "__main__":
    main()
