"""Ranks that train one weight together and save it, until a step is reached; started again, they go on from there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import hydra
from omegaconf import DictConfig

import hpc_hydra

STEPS = 60


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    with hpc_hydra.distributed(cfg) as dist:
        import torch

        out = Path(cfg.out)
        out.mkdir(parents=True, exist_ok=True)
        saved = out / "weight.pt"
        step, weight = torch.load(saved) if saved.exists() else (0, torch.zeros(8))
        loss = torch.zeros(())
        while step < STEPS:
            generator = torch.Generator().manual_seed(dist.seed + 1000 * step + dist.rank)
            x = torch.randn(16, 8, generator=generator)
            error = x @ weight - x.sum(1)
            loss, gradient = (error**2).mean(), (x.T @ error) / 8
            torch.distributed.all_reduce(gradient)
            weight, step = weight - 0.03 * gradient / dist.world_size, step + 1
            if dist.is_main:
                torch.save((step, weight), out / "new.pt")
                (out / "new.pt").rename(saved)
            said = {"step": step, "loss": loss.item(), "world": dist.world_size, "nodes": dist.num_nodes}
            (out / f"step.{os.environ['HPC_HYDRA_ROUND']}.{dist.rank}").write_text(json.dumps(said))
            # none goes on before the node was lost
            while step == STEPS // 2 and os.environ["HPC_HYDRA_ROUND"] == "0":
                torch.distributed.all_reduce(torch.zeros(1))
                time.sleep(0.1)
        return loss.item()


if __name__ == "__main__":
    main()
