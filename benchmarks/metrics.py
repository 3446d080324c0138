"""What `dist.log(step=…, loss=…)` costs a training loop: microseconds a call, and its share of a step.

    python benchmarks/metrics.py                 a local disk; a minute
    python benchmarks/metrics.py --work DIR      on the file system of DIR: /scratch, a home directory

Steps of a small model, on a GPU if there is one, are timed with and without a call in each, in turns. Reading a loss
from a GPU waits for it.
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
            dist = dataclasses.replace(dist, rank=rank)
        loss = 0.123456789
        started = time.perf_counter()
        for step in range(CALLS):
            dist.log(step=step, loss=loss, lr=1e-3)
        return (time.perf_counter() - started) / CALLS * 1e6


def step_time(logged: str, steps: int = 200) -> float:
    """Milliseconds of a training step: without logging, with a number, or with the loss itself, on the device."""
    import torch

    import hpc_hydra

    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, rows = (8192, 32768) if device == "cuda" else (512, 128)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)).to(device)
    optimizer, data = torch.optim.SGD(model.parameters(), 0.01), torch.randn(rows, 512, device=device)
    with hpc_hydra.distributed() as dist:
        for step in range(-20, steps):
            if step == 0:
                if device == "cuda":
                    torch.cuda.synchronize()
                started = time.perf_counter()
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if logged:
                dist.log(step=step, loss=loss if logged == "loss" else 0.5)
        _ = loss.item()
        return (time.perf_counter() - started) / steps * 1e3


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
            "without": lambda: {"ms a step": step_time("")},
            "a number a step": lambda: {"ms a step": step_time("number")},
            "the loss a step": lambda: {"ms a step": step_time("loss")},
        }
        times = _bench.interleaved(steps, options.rounds)
        (work / "metrics.jsonl").unlink()
    table = _bench.compare("dist.log", cost, "us a call", [])
    table += _bench.compare("a training step", times, "ms a step", ["without"])
    _bench.write_json(options.json, calls=cost, steps=times, table=table)
    median = statistics.median(cost["rank 0"]["us a call"])
    print(f"{median:.1f} µs a call (target {TARGET:g})")
    sys.exit(median > TARGET)


if __name__ == "__main__":
    main()
