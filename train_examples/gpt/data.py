"""Text as sequences of tokens, and a loader that says where it is by one number.

The order of the sequences follows from the seed alone; ``position`` counts the sequences that all ranks together have
taken. So a run goes on where it was, on any number of ranks, and sees each sequence once an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset, Subset


def load(cfg: DictConfig) -> list[np.ndarray]:
    """The token files that the config group ``data`` names, in order, mapped and not read; one array each."""
    if cfg.name == "pydoc":
        return [pydoc()]
    if cfg.name not in ("text", "bin"):
        raise ValueError(f"data.name is {cfg.name!r}; use pydoc, text or bin")
    paths = sorted(Path(cfg.path).parent.glob(Path(cfg.path).name))
    if not paths:
        raise FileNotFoundError(f"data.path: no file matches {cfg.path}")
    kind = np.uint8 if cfg.name == "text" else np.dtype(cfg.dtype)
    return [np.memmap(path, dtype=kind, mode="r") for path in paths]


def pydoc() -> np.ndarray:
    """The reference of the Python language, half a megabyte of English that comes with Python itself."""
    from pydoc_data.topics import topics

    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), dtype=np.uint8)


class Sequences(Dataset):
    """Files of tokens, cut into sequences that do not overlap and do not cross files."""

    def __init__(self, files: list[np.ndarray], length: int) -> None:
        self.files, self.length = files, length
        self.ends = np.cumsum([max(len(file) - 1, 0) // length for file in files])
        if self.ends[-1] == 0:
            raise ValueError(f"model.context is {length}, longer than every data file")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> torch.Tensor:
        """Sequence ``index`` and the token after it."""
        file = int(np.searchsorted(self.ends, index, side="right"))
        start = (index - (int(self.ends[file - 1]) if file else 0)) * self.length
        return torch.from_numpy(self.files[file][start : start + self.length + 1].astype(np.int64))


def split(sequences: Sequences) -> tuple[Subset, Subset]:
    """The sequences to learn from; and the last twentieth, at least one, for the test at the end."""
    number = len(sequences)
    end = number - max(number // 20, 1)
    if end < 1:
        raise ValueError(f"the data has {number} sequence of {sequences.length} tokens: too short to learn from")
    return Subset(sequences, range(end)), Subset(sequences, range(end, number))


class Loader:
    """This rank's share of each step's batch.

    Args:
        sequences: all of them, the same on every rank.
        batch: sequences of a step, of all ranks together.
        micro: sequences that a rank takes at a time.
        rank, ranks: who takes which share.
        seed: of the order; the same on every rank.
    """

    def __init__(self, sequences: Dataset, batch: int, micro: int, rank: int, ranks: int, seed: int) -> None:
        if batch % (micro * ranks):
            raise ValueError(
                f"batch_size is {batch}; it must be a multiple of micro_batch_size x ranks = {micro} x {ranks}"
            )
        self.sequences, self.batch, self.micro, self.rank, self.seed = sequences, batch, micro, rank, seed
        self.accumulation = batch // (micro * ranks)
        self.position = 0
        self._epoch, self._order = -1, torch.empty(0)  # the order that _at has made last

    def step(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The micro batches of one step, as tokens and the tokens that follow them."""
        start = self.position + self.rank * self.micro * self.accumulation
        for micro in range(self.accumulation):
            first = start + micro * self.micro
            rows = torch.stack([self.sequences[self._at(first + i)] for i in range(self.micro)])
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        self.position += self.batch

    def _at(self, number: int) -> int:
        epoch, place = divmod(number, len(self.sequences))
        if epoch != self._epoch:
            shuffle = torch.Generator().manual_seed(self.seed + epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self.sequences), generator=shuffle)
        return int(self._order[place])


def describe(files: list[np.ndarray], cfg: DictConfig) -> str:
    """What is read, in words."""
    names = "the Python language reference" if cfg.name == "pydoc" else Path(cfg.path).name
    return f"{sum(map(len, files)):,} tokens of {names} in {len(files)} file{'s' if len(files) > 1 else ''}"
