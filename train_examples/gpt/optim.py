"""The optimizers of a GPT, and the learning rate of each step."""

from __future__ import annotations

import math

import torch
from model import GPT
from omegaconf import DictConfig


def build(cfg: DictConfig, model: GPT) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters; or Muon for the matrices of the blocks and AdamW for the others."""
    hidden = [p for p in model.blocks.parameters() if p.dim() == 2]
    ends = [model.embedding.weight, model.output.weight]
    norms = [p for p in model.parameters() if p.dim() < 2]
    if cfg.name == "adamw":
        return [adamw([*ends, *hidden], norms, cfg.lr, cfg)]
    if cfg.name != "muon":
        raise ValueError(f"optim.name is {cfg.name!r}; use adamw or muon")
    muon = torch.optim.Muon(hidden, lr=cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay)
    return [muon, adamw(ends, norms, cfg.adamw_lr, cfg)]


def adamw(matrices: list, others: list, lr: float, cfg: DictConfig) -> torch.optim.Optimizer:
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=tuple(cfg.betas))


def set_lr(optimizers: list[torch.optim.Optimizer], share: float) -> None:
    """Give every optimizer this share of the learning rate that it was made with."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * optimizer.defaults["lr"]


def schedule(step: int, steps: int, warmup: int, final: float) -> float:
    """Share of the learning rate in step 1 … ``steps``: up along a line, then down along half a cosine to ``final``."""
    if step <= warmup:
        return step / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
