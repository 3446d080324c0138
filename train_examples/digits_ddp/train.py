"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

python train.py                                                     one process, here
python train.py -m resources.procs_per_node=2 optim.lr=0.05,0.1     two runs of two ranks, here
python train.py -m scheduler=slurm resources.nodes=1,2              two SLURM jobs of different size
torchrun --nproc-per-node 2 train.py                                the same script under plain torchrun
"""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path

import checkpoint
import data
import hydra
import torch
import torch.distributed
from hydra.utils import instantiate
from model import ConvNet
from omegaconf import DictConfig
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

import hpc_hydra

log = logging.getLogger(__name__)
SAVED = 75  # exit code (EX_TEMPFAIL): saved, and to be continued


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    """Return the accuracy on the test set, 0 to 1: the result of this run in a sweep."""
    with hpc_hydra.distributed(cfg) as dist:
        return train(cfg, dist)


def train(cfg: DictConfig, dist: hpc_hydra.Dist) -> float:
    device = dist.device
    say = log.info if dist.is_main else log.debug
    ranks = f"{dist.world_size} rank{'s' if dist.world_size > 1 else ''}"
    say("Starting distributed training on %s (%s)", ranks, device.type)
    say("Master node: %s", dist.master_host)

    train_set, test_set, channels, classes = data.load(cfg.data)
    sampler = DistributedSampler(train_set, dist.world_size, dist.rank, seed=dist.seed)
    pin_memory = device.type == "cuda" if cfg.pin_memory == "auto" else cfg.pin_memory
    loading = {"batch_size": cfg.batch_size, "num_workers": cfg.workers, "pin_memory": pin_memory}
    batches = DataLoader(train_set, sampler=sampler, **loading)
    test_batches = test_loader(test_set, dist, **loading)

    torch.manual_seed(dist.seed)
    model = ConvNet(channels, classes, cfg.width).to(device)
    optimizer = instantiate(cfg.optim, list(model.parameters()))
    precision = choose_precision(cfg.amp, device)
    autocast = torch.autocast(device.type, precision, enabled=precision is not torch.float32)
    scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)

    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    folder = Path(from_rank_0(str(Path(cfg.checkpoint_dir).absolute())))
    done = resume(folder, parts, dist)
    ddp = DistributedDataParallel(model)
    board = open_board(cfg, dist)
    if board is not None:
        dist.log_to(board)

    accuracy = 0.0
    if done >= cfg.epochs:
        _, accuracy = evaluate(model, test_batches, autocast, device)
    for epoch in range(done + 1, cfg.epochs + 1):
        start = time.perf_counter()
        # The learning rate (cosine annealing) and all randomness follow from the epoch's number alone: a resumed
        # run equals an unbroken one.
        for group in optimizer.param_groups:
            group["lr"] = cfg.optim.lr * (1 + math.cos(math.pi * (epoch - 1) / cfg.epochs)) / 2
        sampler.set_epoch(epoch)
        torch.manual_seed(dist.seed + epoch * dist.world_size + dist.rank)
        loss = train_epoch(ddp, batches, optimizer, scaler, autocast, device)
        test_loss, accuracy = evaluate(model, test_batches, autocast, device)
        if dist.is_main:
            checkpoint.save(folder, epoch, {name: part.state_dict() for name, part in parts.items()})
        dist.log({"loss/train": loss, "loss/test": test_loss, "accuracy": accuracy}, step=epoch)
        seconds = time.perf_counter() - start
        say("Epoch %d - Avg Loss: %.6f, Accuracy: %.2f%%", epoch, loss, 100 * accuracy)
        say("Epoch %d took %.1f s; average loss on the test set: %.6f", epoch, seconds, test_loss)
        if (warned := dist.any_warned()) and warned.stop and epoch < cfg.epochs:
            say("Saved after epoch %d (%s)", epoch, warned.reason)
            raise SystemExit(SAVED)
    if board is not None:
        board.close()
    return accuracy


def open_board(cfg: DictConfig, dist: hpc_hydra.Dist):
    """Return TensorBoard's writer on rank 0 where it is wanted; a sweep's runs stand side by side in one folder."""
    if not (cfg.tensorboard and dist.is_main):
        return None
    from torch.utils.tensorboard import SummaryWriter  # pip install tensorboard

    return SummaryWriter(os.environ.get("TENSORBOARD_LOGGING_DIR", "tensorboard"))


def train_epoch(ddp, batches, optimizer, scaler, autocast, device) -> float:
    """Make one pass over the training set; return the average loss over the samples of all ranks."""
    ddp.train()
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, samples; read once, so no step waits for it
    for images, labels in batches:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        with autocast:
            loss = nn.functional.cross_entropy(ddp(images), labels)
        scaler.scale(loss).backward()  # DDP averages the gradients of all ranks here
        scaler.step(optimizer)
        scaler.update()
        sums[0] += loss.detach() * len(labels)
        sums[1] += len(labels)
    loss, samples = total(sums)
    return loss / samples


def test_loader(test_set: Dataset, dist: hpc_hydra.Dist, **loading) -> DataLoader:
    """Return this rank's share: every sample on one rank. DistributedSampler would repeat some to make shares equal."""
    return DataLoader(Subset(test_set, range(dist.rank, len(test_set), dist.world_size)), **loading)


@torch.no_grad()
def evaluate(model, batches, autocast, device) -> tuple[float, float]:
    """Return average loss and accuracy on the test set; each sample counts once, on one rank."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right answers, samples
    for images, labels in batches:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with autocast:
            scores = model(images)
        sums[0] += nn.functional.cross_entropy(scores.float(), labels, reduction="sum")
        sums[1] += (scores.argmax(1) == labels).sum()
        sums[2] += len(labels)
    loss, right, samples = total(sums)
    return loss / samples, right / samples


def resume(folder: Path, parts, dist: hpc_hydra.Dist) -> int:
    """Load the newest checkpoint that can be read, the same one on every rank; return its epoch, or 0."""
    path = from_rank_0(checkpoint.newest(folder) if dist.is_main else None)
    if path is None:
        return 0
    state = checkpoint.load(path)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if dist.is_main:
        log.info("Going on after epoch %d (%s)", state["epoch"], path)
    return state["epoch"]


def choose_precision(amp: str, device: torch.device) -> torch.dtype:
    """Return the type that autocast uses: float32 is none."""
    types = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if amp == "auto":
        amp = "none" if device.type != "cuda" else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if amp not in types:
        raise ValueError(f"amp is {amp!r}; use auto, {', '.join(types)}")
    return types[amp]


def total(sums: torch.Tensor) -> list[float]:
    """Sum a tensor over all ranks."""
    torch.distributed.all_reduce(sums)
    return sums.tolist()


def from_rank_0(value):
    """Return rank 0's value on every rank."""
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


if __name__ == "__main__":
    main()
