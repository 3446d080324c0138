"""How a model is spread over the ranks: DistributedDataParallel, or FSDP2."""

from __future__ import annotations

import contextlib

import torch
from model import GPT
from omegaconf import DictConfig
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel


def spread(model: GPT, cfg: DictConfig, mesh: DeviceMesh, precision: torch.dtype) -> nn.Module:
    """Return what is called in the training loop: a wrapper of the model, or (FSDP2) the model, changed in place.

    ``mesh``: the ranks, in one dimension.
    """
    if cfg.name == "ddp":
        return DistributedDataParallel(model, process_group=mesh.get_group())
    if cfg.name != "fsdp":
        raise ValueError(f"parallel.name is {cfg.name!r}; use ddp or fsdp")
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=cfg.reshard_after_forward)
    return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=cfg.reshard_after_forward)


def autocast(cfg: DictConfig, device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Mixed precision for DDP; FSDP2 has its own, which also makes what it sends smaller."""
    return torch.autocast(device.type, torch.bfloat16, enabled=cfg.name == "ddp" and precision is torch.bfloat16)


@contextlib.contextmanager
def synchronised(model: nn.Module, last: bool):
    """Gradients are averaged over the ranks in the last micro batch of a step only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    else:
        with contextlib.nullcontext() if last else model.no_sync():
            yield
