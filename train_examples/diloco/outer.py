"""The outer step of DiLoCo (arXiv:2311.08105): every so many steps, replicas average how far each has moved, and all
take one step of SGD with Nesterov momentum in that direction, from where they last agreed.

With fragments (Streaming DiLoCo, arXiv:2501.18512, without its overlap) a part of the parameters is averaged at a time,
more often: the same traffic, in smaller pieces.
"""

from __future__ import annotations

import torch
from omegaconf import DictConfig
from replicas import Replicas, local
from torch import nn


class Outer:
    """What the replicas agreed on last, and the momentum of their steps.

    Args:
        model: of this replica; its parameters are the inner optimizer's.
        cfg: the config group ``algorithm``: lr, momentum, fragments.
    """

    def __init__(self, model: nn.Module, cfg: DictConfig) -> None:
        self.lr, self.momentum = cfg.outer_lr, cfg.outer_momentum
        self.parameters = dict(model.named_parameters())
        self.agreed = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.moving = {name: torch.zeros_like(p) for name, p in self.agreed.items()}
        names, pieces = list(self.parameters), cfg.fragments
        self.fragments = [names[i * len(names) // pieces : (i + 1) * len(names) // pieces] for i in range(pieces)]

    @torch.no_grad()
    def step(self, replicas: Replicas) -> bool:
        """Average, and move. False: the round came to nothing, and this replica is where all last agreed."""
        names = self.fragments[replicas.round % len(self.fragments)]
        moved = {name: self.agreed[name] - self.parameters[name] for name in names}  # against the gradient's direction
        if not replicas.average([local(moved[name]) for name in names]):
            for name, parameter in self.parameters.items():
                parameter.copy_(self.agreed[name])
            return False
        for name in names:
            momentum = self.moving[name].mul_(self.momentum).add_(moved[name])
            self.agreed[name].sub_(self.lr * (moved[name] + self.momentum * momentum))
            self.parameters[name].copy_(self.agreed[name])
        return True

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """What a checkpoint holds of it."""
        return {"outer": {"agreed": self.agreed, "moving": self.moving}}
