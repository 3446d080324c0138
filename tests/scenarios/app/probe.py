"""A Hydra task of which every rank writes down what it saw; it can sleep, fail, return and all-reduce on request."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)
LOCK = threading.Lock()  # a global that no pickle can hold


@dataclasses.dataclass
class Answer:
    value: int


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("not this one")


RETURNS = {
    "none": lambda: None,
    "not_a_number": lambda: float("nan"),
    "number": lambda: 41.5,
    "dict": lambda: {"acc": 0.5, "list": [1, 2]},
    "dataclass": lambda: Answer(42),
    "lambda": lambda: lambda: 1,
    "file": lambda: open(os.devnull),  # noqa: SIM115
    "generator": lambda: (i for i in range(3)),
    "unpicklable": Unpicklable,
    "big": lambda: b"x" * 200_000_000,
}


def saw(cfg: DictConfig) -> dict:
    old = os.umask(0)
    os.umask(old)
    return {
        "argv": sys.argv,
        "note": cfg.note,
        "cfg": OmegaConf.to_container(cfg, resolve=True),
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "executable": sys.executable,
        "affinity": len(os.sched_getaffinity(0)),
        "umask": old,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "output_dir": HydraConfig.get().runtime.output_dir,
        "num": HydraConfig.get().job.get("num"),
        "time": time.time(),
    }


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig):
    rank = int(os.environ.get("RANK", "0"))
    if cfg.start_skew and rank == 1:
        time.sleep(cfg.start_skew)
    if cfg.ignore_term is not None and rank == cfg.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    data = saw(cfg)
    if cfg.mode == "gloo":
        import torch
        import torch.distributed as torch_dist

        import hpc_hydra

        with hpc_hydra.distributed(cfg) as dist:
            rank = dist.rank
            total = torch.tensor([float(dist.rank + 1)])
            if dist.world_size > 1:
                torch_dist.all_reduce(total)
            data["sum"] = total.item()
            data["seed"] = dist.seed
            data["device"] = str(dist.device)
    target = Path(cfg.out)
    target.mkdir(parents=True, exist_ok=True)
    name = f"{data['num'] if data['num'] is not None else 'x'}.{rank}.json"
    (target / f".{name}").write_text(json.dumps(data))
    (target / f".{name}").rename(target / name)
    log.info("rank %d is here", rank)
    for i in range(cfg.lines):
        print(f"rank {rank} line {i}")
        if i % 100 == 0:
            print(f"rank {rank} stderr {i}", file=sys.stderr)
    if cfg.fail_rank is not None and rank == cfg.fail_rank:
        time.sleep(0.5 if cfg.sleep else 0)
        if cfg.how == "raise":
            raise ValueError(f"boom-{cfg.note}")
        if cfg.how == "exit":
            sys.exit(cfg.exit_code)
        os.kill(os.getpid(), signal.SIGKILL if cfg.how == "kill" else signal.SIGSEGV)
    end = time.monotonic() + cfg.sleep
    while time.monotonic() < end:
        time.sleep(0.1)
    while cfg.gate is not None and not Path(cfg.gate).exists():
        time.sleep(0.1)
    return RETURNS[cfg.ret]()


if __name__ == "__main__":
    main()
