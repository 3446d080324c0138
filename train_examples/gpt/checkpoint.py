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
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

Optimizers = list[torch.optim.Optimizer]
Group = dist.ProcessGroup | None  # the ranks that share a checkpoint; None: all
Tensors = dict[str, Any]


def save(
    folder: Path, step: int, model: nn.Module, optimizers: Optimizers, facts: dict[str, Any], keep: int,
    more: Tensors | None = None, group: Group = None,
) -> None:  # fmt: skip
    """Write ``step_<step>``, with ``more`` tensors and ``facts`` (plain values); leave the ``keep`` newest ones."""
    path = folder / f"step_{step:06d}"
    temporary = path.with_suffix(".tmp")
    tensors, states = get_state_dict(model, optimizers)
    content = {"model": tensors, "optimizers": states, **(more or {})}
    dcp.save(content, checkpoint_id=temporary, process_group=group)
    if dist.get_rank(group) != 0:
        return
    (temporary / "facts.json").write_text(json.dumps({"step": step, **facts}))
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)
    for old in every(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def every(folder: Path) -> list[Path]:
    """All checkpoints that are whole, the newest last."""
    return sorted(path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name))


def resume(
    folder: Path, model: nn.Module, optimizers: Optimizers, more: Tensors | None = None, group: Group = None
) -> dict[str, Any] | None:
    """Load the newest checkpoint, the same one on every rank; return its facts, or None where there is none.

    ``more`` tensors are filled in place.
    """
    newest = from_rank_0(every(folder)[-1:], group)
    if not newest:
        return None
    path = newest[0]
    tensors, states = get_state_dict(model, optimizers)  # as they are now: what dcp reads each tensor into
    content = {"model": tensors, "optimizers": states, **(more or {})}
    dcp.load(content, checkpoint_id=path, process_group=group)
    set_state_dict(model, optimizers, model_state_dict=tensors, optim_state_dict=states)
    return json.loads((path / "facts.json").read_text())


def from_rank_0(value: Any, group: Group = None) -> Any:
    """Return rank 0's value on every rank of the group."""
    box = [value]
    dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]
