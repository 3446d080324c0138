"""The same with Hugging Face Accelerate, which reads rank and world size from the same variables.

hpc-hydra run resources.procs_per_node=2 -- accelerate_train.py --lr 0.1    (instead of `accelerate launch`)
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # on CPUs it has to be told, or every rank is alone

    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    batches = DataLoader(dataset, args.batch_size, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    for epoch in range(1, args.epochs + 1):
        losses = []
        for pictures, answers in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), answers)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        loss = accelerator.reduce(torch.stack(losses).mean(), "mean")
        accelerator.print(f"Epoch {epoch} - Avg Loss: {loss:.6f} ({accelerator.num_processes} ranks, lr {args.lr})")
    model, optimizer, batches = accelerator.free_memory(model, optimizer, batches)  # or torch may abort at the exit
    accelerator.end_training()


if __name__ == "__main__":
    main()
