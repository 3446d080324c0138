"""A small convolutional network for images of any size."""

from __future__ import annotations

from torch import nn


class ConvNet(nn.Sequential):
    """Three convolutions and a linear layer.

    GroupNorm, not BatchNorm: it keeps no running statistics, so all ranks evaluate exactly the same model.
    """

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__(
            *block(channels, width),
            *block(width, 2 * width),
            nn.MaxPool2d(2),
            *block(2 * width, 2 * width),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * 2 * 2 * width, classes),
        )


def block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()
