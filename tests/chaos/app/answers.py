"""The trainings' arithmetic: integers, so that sums are the same in any order of ranks. Imports nothing."""

from __future__ import annotations

PRIME, SIZE = 2**31 - 1, 4


def gradient(key: int, step: int, rank: int) -> list[int]:
    return [(key * 7919 + step * 104729 + rank * 1299709 + i) % 9973 for i in range(SIZE)]


def updated(weights: list[int], total: list[int]) -> list[int]:
    return [(w * 48271 + g + 1) % PRIME for w, g in zip(weights, total, strict=True)]


def answer(key: int, steps: int, ranks: int) -> list[int]:
    """The weights of an undisturbed training, in which so many ranks add their gradients."""
    weights = [0] * SIZE
    for step in range(steps):
        parts = [gradient(key, step, rank) for rank in range(ranks)]
        weights = updated(weights, [sum(column) for column in zip(*parts, strict=True)])
    return weights
