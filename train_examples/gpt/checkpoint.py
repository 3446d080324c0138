"""Checkpoints by torch.distributed.checkpoint: every rank writes its part, and any number of ranks can read them.

A checkpoint is whole or not there: it is written under another name, and renamed when all ranks are done.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import hpc_hydra

Optimizers = list[torch.optim.Optimizer]


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizers: Optimizers,
    facts: dict[str, Any],
    dist: hpc_hydra.Dist,
    keep: int,
) -> None:
    """Write ``step_<step>``, with ``facts`` (plain values) beside the tensors; leave the ``keep`` newest ones."""
    path = folder / f"step_{step:06d}"
    temporary = path.with_suffix(".tmp")
    tensors, states = get_state_dict(model, optimizers)
    dcp.save({"model": tensors, "optimizers": states}, checkpoint_id=temporary)
    if not dist.is_main:
        return
    (temporary / "facts.json").write_text(json.dumps({"step": step, **facts}))
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    for old in every(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def every(folder: Path) -> list[Path]:
    """All checkpoints that are whole, the newest last."""
    return sorted(path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name))


def resume(folder: Path, model: nn.Module, optimizers: Optimizers, dist: hpc_hydra.Dist) -> dict[str, Any] | None:
    """Load the newest checkpoint, the same one on every rank; return its facts, or None where there is none."""
    newest = from_rank_0(every(folder)[-1:] if dist.is_main else [])
    if not newest:
        return None
    path = newest[0]
    tensors, states = get_state_dict(model, optimizers)  # as they are now: what dcp reads each tensor into
    dcp.load({"model": tensors, "optimizers": states}, checkpoint_id=path)
    set_state_dict(model, optimizers, model_state_dict=tensors, optim_state_dict=states)
    return json.loads((path / "facts.json").read_text())


def from_rank_0(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
