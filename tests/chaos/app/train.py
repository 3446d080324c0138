"""A training with a known answer (`answers.py`). It saves each step."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import hydra
from answers import SIZE, gradient, updated
from omegaconf import DictConfig

import hpc_hydra


class Journal:
    """What this process did, a line each, in a file of its own."""

    def __init__(self, folder: str, **who: Any) -> None:
        self._who = who
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"{who['run']}.{who['attempt']}.{who['rank']}.{socket.gethostname()}.{os.getpid()}.jsonl"
        self._file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, event: str, **more: Any) -> None:
        line = {"event": event, "time": time.time(), **self._who, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def all_reduced(values: list[int]) -> list[int]:
    import torch
    import torch.distributed as group

    if not group.is_initialized() or group.get_world_size() == 1:
        return values
    if torch.__version__.endswith("light"):
        group.all_reduce(values)
        return values
    found = torch.tensor(values, dtype=torch.int64)
    group.all_reduce(found)
    return [int(value) for value in found.tolist()]


def load(saved: Path) -> tuple[int, list[int]]:
    if not saved.exists():
        return 0, [0] * SIZE
    state = json.loads(saved.read_text())
    return state["step"], state["weights"]


def save(saved: Path, step: int, weights: list[int]) -> None:
    new = saved.with_suffix(f".{os.getpid()}.new")
    with new.open("w") as file:
        json.dump({"step": step, "weights": weights}, file)
        file.flush()
        os.fsync(file.fileno())
    new.rename(saved)


@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg: DictConfig) -> dict[str, Any]:
    env = os.environ
    with hpc_hydra.distributed(cfg) as dist:
        attempt = env["HPC_HYDRA_ATTEMPT"]
        journal = Journal(
            cfg.journal, run=int(env["HPC_HYDRA_RUN"]), attempt=attempt, rank=dist.rank,
            round=int(env.get("HPC_HYDRA_ROUND", "0")), host=socket.gethostname(), pid=os.getpid(),
        )  # fmt: skip
        assert dist.output_dir is not None
        saved = dist.output_dir / "saved.json"
        step, weights = load(saved)
        steps = all_reduced([step, step * step])
        assert steps[0] ** 2 == steps[1] * dist.world_size, f"ranks loaded different steps: {step}, {steps}"
        journal.note("begin", step=step)
        while step < cfg.steps:
            weights = updated(weights, all_reduced(gradient(cfg.key, step, dist.rank)))
            step += 1
            if dist.is_main:
                save(saved, step, weights)
            journal.note("step", step=step)
            time.sleep(cfg.pause)
            if all_reduced([int(dist.warned)])[0] and step < cfg.steps:
                journal.note("warned", step=step)
                sys.exit(75)
        journal.note("done", step=step)
        return {"weights": weights, "step": step}


if __name__ == "__main__":
    main()
