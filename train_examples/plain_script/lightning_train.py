"""The same with Lightning.

hpc-hydra run resources.procs_per_node=2 -- lightning_train.py --lr 0.1
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _) -> torch.Tensor:
        pictures, answers = batch
        loss = nn.functional.cross_entropy(self.net(pictures), answers)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        loss, ranks = self.trainer.callback_metrics["loss"], self.trainer.world_size
        self.print(f"Epoch {self.current_epoch + 1} - Avg Loss: {loss:.6f} ({ranks} ranks, lr {self.lr})")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


def under_a_launcher() -> dict:
    """Tells the Trainer that the ranks exist already, and that each is identified by its environment.

    Without it Lightning would start ranks of its own, or, inside a SLURM job, guess the port from the job's number.
    """
    ranks_here, ranks = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():  # each rank may see its own GPU only, or all of its node
        devices = [torch.device("cuda", rank % torch.cuda.device_count()) for rank in range(ranks_here)]
    else:
        devices = [torch.device("cpu")] * ranks_here
    strategy = DDPStrategy(parallel_devices=devices, cluster_environment=TorchElasticEnvironment())
    return {"strategy": strategy, "num_nodes": ranks // ranks_here}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    args = parser.parse_args()

    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        **under_a_launcher(),
    )
    trainer.fit(Digits(args.lr), DataLoader(dataset, args.batch_size, shuffle=True))


if __name__ == "__main__":
    main()
