"""What `dist.log(step=…, loss=…)` costs a training loop: microseconds a call, and its share of a step.

    python benchmarks/metrics.py                 a local disk; a minute
    python benchmarks/metrics.py --work DIR      on the file system of DIR: /scratch, a home directory

Steps of a small model on the CPU are timed with and without a call in each, in turns.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from pathlib import Path

import _bench

TARGET = 20.0  # microseconds a call
CALLS = 2_000  # of one sample


def calls(folder: Path, rank: int) -> float:
    """Microseconds of a call with two metrics."""
    import hpc_hydra

    with hpc_hydra.distributed() as dist:
        if rank:
            dist = dataclasses.replace(dist, rank=rank, _metrics=None)
        loss = 0.123456789
        started = time.perf_counter()
        for step in range(CALLS):
            dist.log(step=step, loss=loss, lr=1e-3)
        return (time.perf_counter() - started) / CALLS * 1e6


def step_time(logged: bool, steps: int = 200) -> float:
    """Milliseconds of a training step, the median."""
    import torch

    import hpc_hydra

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer, data = torch.optim.SGD(model.parameters(), 0.01), torch.randn(128, 512)
    times = []
    with hpc_hydra.distributed() as dist:
        for step in range(steps):
            started = time.perf_counter()
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if logged:
                dist.log(step=step, loss=loss)
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    sys.path.insert(0, str(_bench.ROOT))
    with _bench.workplace(options.work) as work:
        os.environ["HPC_HYDRA_OUTPUT_DIR"] = str(work)
        ways = {
            "rank 0": lambda: {"us a call": calls(work, 0)},
            "another rank": lambda: {"us a call": calls(work, 1)},
        }
        cost = _bench.interleaved(ways, options.rounds)
        steps = {
            "without": lambda: {"ms a step": step_time(False)},
            "with a call a step": lambda: {"ms a step": step_time(True)},
        }
        times = _bench.interleaved(steps, options.rounds)
        (work / "metrics.jsonl").unlink()
    table = _bench.compare("dist.log", cost, "us a call", [])
    table += _bench.compare("a step of 128 rows through 512 × 512", times, "ms a step", ["without"])
    _bench.write_json(options.json, calls=cost, steps=times, table=table)
    median = statistics.median(cost["rank 0"]["us a call"])
    print(f"{median:.1f} µs a call (target {TARGET:g})")
    sys.exit(median > TARGET)


if __name__ == "__main__":
    main()
