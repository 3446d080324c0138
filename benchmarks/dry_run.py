"""A dry run of one job: `hpc-hydra torchrun --dry-run` against torchrun-hpc 1.0.6, in CPU seconds.

Each in an environment of its own, in turn. Both find the torch of the running interpreter, so that none is helped by
its absence. CPU time counts, since it does not depend on who else uses the machine.

    python benchmarks/dry_run.py                         9 rounds
"""

from __future__ import annotations

from pathlib import Path

import _bench

PEER = "hpc-launcher==1.0.6"  # the distribution that holds torchrun-hpc
SIZE = ["-N", "2", "-n", "4"]
FACTS = ["-p", "gpus_per_node=8", "cores_per_node=56", "mem_per_gpu=64", "numa_domains=4", "--"]


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    options = parser.parse_args()
    with _bench.workplace(options.work) as work:
        ours = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA, also=["torch"]).parent
        peer = _bench.make_venv(work / "peer", PEER, also=["torch"]).parent
        folder = work / "case"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text("print('trains')\n")
        env = _bench.environment()

        def timed(*command: str | Path) -> dict[str, float]:
            usage = _bench.measure(command, cwd=folder, env=env)
            return {"CPU seconds": usage.cpu, "wall seconds": usage.wall, "peak MB": usage.peak_rss / 1e6}

        frontier = ["--system", "frontier", *SIZE, "train.py"]
        facts = ["--scheduler", "slurm", *SIZE, *FACTS, "train.py"]
        ways = {
            "torchrun-hpc": lambda: timed(peer / "torchrun-hpc", "--dry-run", *facts),
            "hpc-hydra torchrun": lambda: timed(ours / "hpc-hydra", "torchrun", "--dry-run", *frontier),
            "hpc-hydra torchrun, same flags": lambda: timed(ours / "hpc-hydra", "torchrun", "--dry-run", *facts),
            "python -c 'import torch'": lambda: timed(peer / "python", "-c", "import torch"),
            "python -c 'import hydra'": lambda: timed(ours / "python", "-c", "import hydra"),
        }
        samples = _bench.interleaved(ways, options.rounds)
    table = []
    for quantity in ("CPU seconds", "wall seconds", "peak MB"):
        table += _bench.compare("A dry run of 2 nodes x 4 ranks", samples, quantity, ["torchrun-hpc"])
    _bench.write_json(options.json, samples=samples, table=table)


if __name__ == "__main__":
    main()
