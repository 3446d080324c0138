"""A small GPT: rotary positions, RMSNorm before each part, attention by SDPA, a SwiGLU network. One file, no options
that the configuration does not have."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class GPT(nn.Module):
    """Predicts the next token.

    Args:
        vocab_size: number of different tokens.
        context: longest sequence, tokens.
        layers, heads, width: blocks, attention heads of each, size of the residual stream (a multiple of heads).
        recompute: keep only the input of each block for the backward pass, and compute the rest again there.
    """

    def __init__(
        self, vocab_size: int, context: int, layers: int, heads: int, width: int, recompute: bool = False
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"model.width is {width}; it must be a multiple of 2 x model.heads = {2 * heads}")
        self.recompute = recompute
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(heads, width) for _ in range(layers))
        self.norm = Norm(width)
        self.output = nn.Linear(width, vocab_size, bias=False)
        self.register_buffer("rotation", rotation(context, width // heads), persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.output.weight", "network.output.weight")):
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)  # the residual stream keeps its size
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the targets; both tensors are batch x sequence."""
        stream = self.embedding(tokens)
        angles = self.rotation[: tokens.shape[1]]
        for block in self.blocks:
            if self.recompute and self.training:
                stream = checkpoint(block, stream, angles, use_reentrant=False)
            else:
                stream = block(stream, angles)
        logits = self.output(self.norm(stream))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Block(nn.Module):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(width), Attention(heads, width)
        self.network_norm, self.network = Norm(width), Network(width)

    def forward(self, stream: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        stream = stream + self.attention(self.attention_norm(stream), angles)
        return stream + self.network(self.network_norm(stream))


class Norm(nn.RMSNorm):
    """RMSNorm whose weight follows the input's type: under autocast the fused kernel wants both alike."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Causal attention; queries and keys are normalised, then turned by their position."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.query_norm, self.key_norm = Norm(width // heads), Norm(width // heads)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, stream: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(stream).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = turn(self.query_norm(query), angles), turn(self.key_norm(key), angles)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(found.transpose(1, 2).flatten(2))


class Network(nn.Module):
    """SwiGLU, with as many parameters as a plain network of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = -(-8 * width // 3 // 16) * 16
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return self.output(F.silu(self.gate(stream)) * self.up(stream))


def rotation(context: int, size: int, base: float = 10_000.0) -> torch.Tensor:
    """Cosines and sines of RoPE: context x 2 x size/2."""
    frequencies = base ** -(torch.arange(0, size, 2).float() / size)
    angles = torch.outer(torch.arange(context).float(), frequencies)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def turn(vectors: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn the two halves of each vector against each other by the angle of its position."""
    cos, sin = angles.to(vectors.dtype).unbind(1)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def flops_per_token(model: GPT, context: int) -> float:
    """Floating-point operations of one training step for one token: 6 for each weight of a matrix that it passes,
    and 12 for each pair of positions and channel in attention (PaLM, arXiv:2204.02311, appendix B)."""
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2) - model.embedding.weight.numel()
    return 6.0 * weights + 12.0 * len(model.blocks) * context * model.embedding.embedding_dim
