"""Replica groups that train one weight with torchft, until the file `cfg.out`/target names a step that was reached."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import hydra
from omegaconf import DictConfig

import hpc_hydra


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    with hpc_hydra.distributed(cfg) as dist:
        import torch
        import torchft

        torch.manual_seed(dist.seed + dist.replica)
        weight = torch.nn.Linear(8, 1)
        inner = torch.optim.SGD(weight.parameters(), lr=0.02)

        def load(state: dict) -> None:
            weight.load_state_dict(state["weight"])
            inner.load_state_dict(state["inner"])

        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
            load_state_dict=load,
            state_dict=lambda: {"weight": weight.state_dict(), "inner": inner.state_dict()},
            min_replica_size=1,
            replica_id=f"probe_{dist.replica}",
        )
        optimizer = torchft.Optimizer(manager, inner)
        out = Path(cfg.out)
        out.mkdir(parents=True, exist_ok=True)
        log = (out / f"steps.{dist.replica}.jsonl").open("a", buffering=1)
        loss = torch.tensor(float("nan"))
        while not (out / "target").exists() or manager.current_step() < int((out / "target").read_text()):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            loss = ((weight(x) - x.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
            # torchft.DistributedDataParallel fails with AssertionError where a peer dies during an all-reduce (0.2.0)
            for parameter in weight.parameters():
                manager.allreduce(parameter.grad).wait()
            optimizer.step()
            said = {"step": manager.current_step(), "replicas": manager.num_participants(), "loss": loss.item()}
            if dist.is_main:
                log.write(json.dumps({**said, "pid": os.getpid(), "ranks": dist.world_size}) + "\n")
            time.sleep(0.05)
        manager.shutdown(wait=False)
        return loss.item()


if __name__ == "__main__":
    main()
