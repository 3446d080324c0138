"""The same kind of training with replica groups of torchft: each adds the same gradient, so that their average, and the
answer, do not depend on how many take part. It saves each step. With the stand-in for torch, each group trains without
the others.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig
from train import Journal, load, save

import hpc_hydra

if "HPC_HYDRA_CHAOS_LIGHT" in os.environ:  # not for the agent, which needs torch itself
    sys.path.insert(0, str(Path(__file__).parents[1] / "light"))


class Alone:
    """As much of torchft's `Manager` as the training uses, for one group."""

    def __init__(self, step: int) -> None:
        self._step = step

    def current_step(self) -> int:
        return self._step

    def averaged(self, values: list[int]) -> list[int] | None:
        self._step += 1
        return values

    def shutdown(self, wait: bool) -> None:
        """Nothing is to be ended."""


def of_torchft(step: int, state: dict[str, Any], replica: int) -> Any:
    import torch
    import torchft

    class Manager(torchft.Manager):
        def averaged(self, values: list[int]) -> list[int] | None:
            """Over all groups, whose values are equal; None: a group was lost meanwhile."""
            self.start_quorum()
            total = torch.tensor(values, dtype=torch.float64)
            self.allreduce(total).wait()
            return [round(value) for value in total.tolist()] if self.should_commit() else None

    manager = Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)), load_state_dict=state.update,
        state_dict=lambda: dict(state), min_replica_size=1, replica_id=f"chaos_{replica}",
        init_sync=False,  # all begin with the same weights; it would take a group's gradient for zero at step 0
    )  # fmt: skip
    manager.load_state_dict({"step": step, "batches_committed": step})
    return manager


@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg: DictConfig) -> dict[str, Any]:
    env = os.environ
    with hpc_hydra.distributed(cfg) as dist:
        import torch
        from answers import gradient, updated

        journal = Journal(
            cfg.journal, run=int(env["HPC_HYDRA_RUN"]), attempt=env["HPC_HYDRA_ATTEMPT"], rank=dist.rank,
            replica=dist.replica, round=0, host=socket.gethostname(), pid=os.getpid(),
        )  # fmt: skip
        assert dist.output_dir is not None
        saved = dist.output_dir / "saved.json"
        step, weights = load(saved)
        state = {"weights": weights}
        light = torch.__version__.endswith("light")
        manager = Alone(step) if light else of_torchft(step, state, dist.replica)
        journal.note("begin", step=step)
        while (step := manager.current_step()) < cfg.steps:
            if (average := manager.averaged(gradient(cfg.key, step, 0))) is not None:
                state["weights"] = updated(state["weights"], average)
                if dist.is_main:
                    save(saved, manager.current_step(), state["weights"])
                journal.note("step", step=manager.current_step())
            time.sleep(cfg.pause)
        journal.note("done", step=manager.current_step())
        manager.shutdown(wait=False)
        return {"weights": state["weights"], "step": manager.current_step()}


if __name__ == "__main__":
    main()
