"""The same kind of training with replica groups of torchft: each adds the same gradient, so that their average, and the
answer, do not depend on how many take part. It saves each step.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import hydra
from omegaconf import DictConfig
from train import Journal, load, save

import hpc_hydra


@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg: DictConfig) -> dict[str, Any]:
    env = os.environ
    with hpc_hydra.distributed(cfg) as dist:
        import torch
        import torchft
        from answers import gradient, updated

        journal = Journal(
            cfg.journal, run=int(env["HPC_HYDRA_RUN"]), attempt=env["HPC_HYDRA_ATTEMPT"], rank=dist.rank,
            replica=dist.replica, round=0, host=socket.gethostname(), pid=os.getpid(),
        )  # fmt: skip
        assert dist.output_dir is not None
        saved = dist.output_dir / "saved.json"
        step, weights = load(saved)
        state = {"weights": weights}
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)), load_state_dict=state.update,
            state_dict=lambda: dict(state), min_replica_size=1, replica_id=f"chaos_{dist.replica}",
            init_sync=False,  # all begin with the same weights; it would take a group's gradient for zero at step 0
        )  # fmt: skip
        manager.load_state_dict({"step": step, "batches_committed": step})
        journal.note("begin", step=step)
        while (step := manager.current_step()) < cfg.steps:
            manager.start_quorum()
            total = torch.tensor(gradient(cfg.key, step, 0), dtype=torch.float64)
            manager.allreduce(total).wait()  # the average of equal values
            if manager.should_commit():
                state["weights"] = updated(state["weights"], [round(value) for value in total.tolist()])
                if dist.is_main:
                    save(saved, manager.current_step(), state["weights"])
                journal.note("step", step=manager.current_step())
            time.sleep(cfg.pause)
        journal.note("done", step=manager.current_step())
        manager.shutdown(wait=False)
        return {"weights": state["weights"], "step": manager.current_step()}


if __name__ == "__main__":
    main()
