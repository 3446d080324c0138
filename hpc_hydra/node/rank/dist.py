"""`Dist`: what a training program knows about its rank, and does with it.

Must not know: how the ranks found each other, how they are launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.node.rank import trackers, warned
from hpc_hydra.node.rank.warned import Warned
from hpc_hydra.records.metrics import number, step_number

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dist:
    """The rank of this process, and its device.

    Attributes:
        world_size: number of ranks of the run, or of the replica group.
        local_world_size: number of ranks on this node.
        device: the GPU of this rank, or the CPU.
        backend: of the process group: ``nccl``, ``gloo``, ``xccl``, ``mpi``.
        seed: the run's seed, the same on all ranks.
        output_dir: directory of the run, absolute, the same on all ranks and for all attempts. None outside of Hydra.
        replica: number of the replica group (torchft) whose ranks these are.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    device: torch.device
    backend: str
    seed: int
    master_host: str
    output_dir: Path | None = None
    replica: int = 0
    num_replicas: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 of its replica group: the rank that writes checkpoints and prints."""
        return self.rank == 0

    @property
    def warned(self) -> Warned:
        """Whether this rank is to save a checkpoint now, with the reason: see `Warned`. Waits for nothing.

        Ranks are warned at different times; `any_warned` lets them agree. A request to save and go on is true once: the
        next time it is read, it is false again.
        """
        return warned.own()

    def any_warned(self) -> Warned:
        """Return `warned` of any rank, the same on all: each rank calls this at the same place, such as after a step.

        A request to save and go on is returned once, by the same call of all ranks. This is an all-reduce of four
        numbers, on the CPU with a backend that includes gloo. With NCCL it waits for the GPU: call it where the loss is
        read, or every few steps.
        """
        return warned.any_of(self._maximum)

    def _maximum(self, values: Sequence[float]) -> Sequence[float]:
        import torch
        import torch.distributed as group

        if self.world_size == 1 or not group.is_initialized():
            return values
        on_cpu = any(name in self.backend for name in ("gloo", "mpi"))
        tensor = torch.tensor(values, dtype=torch.float32, device="cpu" if on_cpu else self.device)
        group.all_reduce(tensor, group.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]

    def barrier(self) -> None:
        """Wait for all ranks."""
        import torch.distributed as group

        if group.is_initialized():
            group.barrier(device_ids=[self.device.index] if self.backend == "nccl" else None)

    def log(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **more: Any) -> None:
        """Record metrics: ``dist.log(step=10, loss=0.25)``, or ``dist.log({"train/loss": 0.25}, step=10)``.

        Rank 0 appends them to `metrics.jsonl` in the run's directory, and passes them on to active runs of W&B and
        MLflow in this process and to writers of `log_to`. On other ranks, and in replica groups after the first, this
        does nothing. A line survives a crash of the process. Errors of the disk and of trackers are warnings.

        A step is an integer; a value is a number, or an array or tensor with one element; else `TypeError` is raised.
        Reading a tensor of a GPU waits for the GPU, as ``tensor.item()`` does: log every few steps, or values that are
        read anyway.
        """
        if self.rank == 0 and not self.replica:
            found = {**values, **more} if values else more
            values = {name: number(name, value) for name, value in found.items()}
            trackers.metrics_of(self.output_dir).log(values, step_number(step))

    def log_to(self, writer: Any) -> None:
        """Pass later metrics on to ``writer``: a ``SummaryWriter`` of TensorBoard, or a function of values and step.

        Does nothing on ranks that do not `log`. Raises `TypeError` for anything else.
        """
        if self.rank == 0 and not self.replica:
            trackers.metrics_of(self.output_dir).add(writer)
