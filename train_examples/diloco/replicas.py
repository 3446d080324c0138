"""How replicas of a model are averaged: as parts of one world of ranks, or as TorchFT's groups, which may rejoin.

`Outer` and the training loop know only `Replicas`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as group
from omegaconf import DictConfig
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import hpc_hydra

State = Callable[[], list[torch.Tensor]]  # everything that a rejoining replica copies from another


class Replicas(Protocol):
    number: int  # of this replica
    count: int
    mesh: DeviceMesh  # the ranks of this replica
    round: int  # how many outer steps were taken

    def meet(self) -> None:
        """Find out who is there. A rejoining replica copies the state and round of another."""

    def average(self, tensors: list[torch.Tensor]) -> bool:
        """Replace each tensor by its mean over the replicas; False: one was lost meanwhile, the round is void."""

    def close(self) -> None:
        """Leave the other replicas."""


def join(cfg: DictConfig, dist: hpc_hydra.Dist, state: State) -> Replicas:
    """TorchFT's groups where the launcher has started such (rendezvous=torchft), else parts of this world."""
    if "TORCHFT_LIGHTHOUSE" in os.environ:
        return Groups(cfg, dist, state)
    return Parts(cfg.algorithm.replicas, dist)


class Parts:
    """Replicas inside one world: if one fails, all do."""

    def __init__(self, count: int | None, dist: hpc_hydra.Dist) -> None:
        self.count, self.round = count or 1, 0
        if dist.world_size % self.count:
            raise ValueError(f"algorithm.replicas is {self.count}, which does not divide {dist.world_size} ranks")
        shape = (self.count, dist.world_size // self.count)
        both = init_device_mesh(dist.device.type, shape, mesh_dim_names=("replica", "rank"))
        self.number, self.mesh = both.get_local_rank("replica"), both["rank"]
        self._across = both["replica"].get_group()

    def meet(self) -> None:
        pass

    def average(self, tensors: list[torch.Tensor]) -> bool:
        for tensor in tensors:
            group.all_reduce(tensor, group=self._across)
            tensor /= self.count
        self.round += 1
        return True

    def close(self) -> None:
        pass


class Groups:
    """TorchFT's replica groups: each rank of one averages with the same rank of the others that are alive."""

    def __init__(self, cfg: DictConfig, dist: hpc_hydra.Dist, state: State) -> None:
        import torchft

        for name in ("torchft", "torchft_quorums", "torchft_commits"):  # several lines a round
            logging.getLogger(name).setLevel(logging.WARNING)
        self.number, self.count = dist.replica, dist.num_replicas
        self.mesh = init_device_mesh(dist.device.type, (dist.world_size,))
        self._state = state
        patience = timedelta(seconds=cfg.algorithm.timeout)
        kind = torchft.ProcessGroupNCCL if dist.device.type == "cuda" else torchft.ProcessGroupGloo
        self.manager = torchft.Manager(
            pg=kind(timeout=patience),
            load_state_dict=self._load,
            state_dict=self._save,
            min_replica_size=cfg.rendezvous.min_replicas or 1,
            use_async_quorum=False,
            init_sync=False,  # launch.seed gives all the same weights
            timeout=patience,
            replica_id=f"replica_{self.number}",
        )

    @property
    def round(self) -> int:
        return self.manager.current_step()

    @round.setter
    def round(self, value: int) -> None:
        self.manager.load_state_dict({"step": value, "batches_committed": value * self.count})

    def meet(self) -> None:
        self.manager.start_quorum()

    def average(self, tensors: list[torch.Tensor]) -> bool:
        for work in [self.manager.allreduce(tensor) for tensor in tensors]:
            work.wait()
        return self.manager.should_commit()

    def close(self) -> None:
        self.manager.shutdown()

    def _save(self) -> dict[str, list[torch.Tensor]]:
        return {"tensors": self._state()}

    @torch.no_grad()
    def _load(self, state: dict[str, list[torch.Tensor]]) -> None:
        for mine, theirs in zip(self._state(), state["tensors"], strict=True):
            mine.copy_(theirs)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor that FSDP2 has sharded; other tensors as they are."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
