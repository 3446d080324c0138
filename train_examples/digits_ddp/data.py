"""The data sets: each function returns training set, test set, and numbers of channels and classes."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset, TensorDataset


class Data(NamedTuple):
    train: Dataset
    test: Dataset
    channels: int
    classes: int


def load(cfg: DictConfig) -> Data:
    """Load what the config group ``data`` names."""
    if cfg.name == "digits":
        return digits()
    if cfg.name == "mnist":
        return mnist(Path(cfg.dir))
    if cfg.name == "imagefolder":
        return image_folder(Path(cfg.dir), cfg.image_size)
    raise ValueError(f"data.name is {cfg.name!r}; use digits, mnist or imagefolder")


def digits() -> Data:
    """Scikit-learn's digits. Every fifth one is for testing, so that each rank makes the same split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("data=digits comes with scikit-learn. Try: pip install scikit-learn") from error
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target)
    test = torch.arange(len(labels)) % 5 == 4
    return Data(TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test]), 1, 10)


def mnist(folder: Path) -> Data:
    """The four IDX files of MNIST, or of a set in the same format (Fashion-MNIST, KMNIST)."""

    def part(name: str) -> TensorDataset:
        images = read_idx(folder, f"{name}-images-idx3-ubyte").unsqueeze(1).float() / 255
        return TensorDataset(images, read_idx(folder, f"{name}-labels-idx1-ubyte").long())

    return Data(part("train"), part("t10k"), 1, 10)


def read_idx(folder: Path, name: str) -> torch.Tensor:
    """Read one IDX file of unsigned bytes: two zeros, the type 8, the number of dimensions, their sizes, the data."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            break
    else:
        raise FileNotFoundError(f"data.dir: {folder} holds neither {name} nor {name}.gz")
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    sizes = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return torch.frombuffer(bytearray(raw[4 + 4 * len(sizes) :]), dtype=torch.uint8).reshape(sizes)


def image_folder(folder: Path, size: int) -> Data:
    """Folders of images, one per class: ``train/<class>/*`` and ``val/<class>/*``."""
    try:
        from torchvision import datasets, transforms
    except ImportError as error:
        raise ImportError("data=imagefolder reads pictures with torchvision. Try: pip install torchvision") from error
    prepare = [transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor()]
    train = datasets.ImageFolder(folder / "train", transforms.Compose([*prepare, transforms.RandomHorizontalFlip()]))
    test = datasets.ImageFolder(folder / "val", transforms.Compose(prepare))
    if train.classes != test.classes:
        raise ValueError(f"data.dir: train/ and val/ of {folder} do not hold the same classes")
    return Data(train, test, 3, len(train.classes))
