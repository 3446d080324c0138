"""Reproducible training: runs on the same machines with one seed and number of ranks end with the same weights."""

from __future__ import annotations

import os

import torch
import torch.distributed
from torch import nn
from torch.distributed.tensor import DTensor


def switch(on: bool, compiled: bool) -> None:
    """Make torch use deterministic operations alone; call it before CUDA and NCCL start.

    Raises:
        ValueError: with torch.compile, which picks kernels by their speed.
    """
    if not on:
        return
    if compiled:
        raise ValueError(
            "deterministic is true; it needs compile=false, since torch.compile picks kernels by their speed"
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("NCCL_ALGO", "Ring")  # sums in the order of the ranks; NVLS and CollNet add in any order
    torch.use_deterministic_algorithms(True)  # an operation without a deterministic form is an error
    torch.utils.deterministic.fill_uninitialized_memory = False  # finds mistakes, costs time
    torch.backends.cudnn.benchmark = False
    # The backward pass of flash attention is then one that adds in order; the math kernel, where flash does not fit.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """Return a hexadecimal checksum of the weights, the same on all ranks; one different bit changes it.

    Equal numbers are equal weights only between runs that spread the model in the same way over as many ranks.
    """
    total = torch.zeros((), dtype=torch.int64, device=next(model.parameters()).device)
    for parameter in model.parameters():
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        bits = own.flatten().contiguous().view(torch.int32).to(torch.int64)
        total = 31 * total + (bits * torch.arange(1, 2 * len(bits), 2, device=bits.device)).sum()
    torch.distributed.all_reduce(total)  # integers: exact in any order
    return f"{total.item() & (2**64 - 1):016x}"
