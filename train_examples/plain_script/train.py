"""Train a small network on handwritten digits: an ordinary script, without Hydra and without hpc_hydra.

hpc-hydra run resources.procs_per_node=2 -- train.py --lr 0.1                      two ranks, here
hpc-hydra run scheduler=slurm resources.nodes=2 -- train.py --lr 0.1               two nodes of SLURM
torchrun --standalone --nproc-per-node 2 train.py --lr 0.1                         the same without a launcher
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def init_distributed() -> tuple[int, int, torch.device]:
    """Join the other ranks: the launcher has set rank and world size in the environment."""
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return rank, world_size, torch.device("cpu")
    # A launcher that shows each rank its own GPU only: then that is GPU 0 on all of them.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return rank, world_size, device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--checkpoint", type=Path, help="goes on from this file where it is, and writes it")
    args = parser.parse_args()
    rank, world_size, device = init_distributed()

    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, world_size, rank)
    batches = DataLoader(dataset, args.batch_size, sampler=sampler)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    first = 1
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    ddp = DistributedDataParallel(model)

    for epoch in range(first, args.epochs + 1):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2, device=device)  # loss, batches
        for pictures, answers in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(pictures.to(device)), answers.to(device))
            loss.backward()  # DDP averages the gradients of all ranks here
            optimizer.step()
            sums += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(sums)
        if rank == 0:
            print(f"Epoch {epoch} - Avg Loss: {sums[0] / sums[1]:.6f} ({world_size} ranks, lr {args.lr})", flush=True)
            if args.checkpoint:
                state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, args.checkpoint.with_suffix(".tmp"))
                args.checkpoint.with_suffix(".tmp").replace(args.checkpoint)
    del ddp  # its threads must not outlive the interpreter, or torch may abort
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
