"""What follows from the size of a model, for the configuration: ``${parameters:${model},${data.vocab_size}}`` …"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf


def parameters(model: DictConfig, vocab_size: int) -> int:
    """Number of weights in matrices: embedding, output, and in each block attention and SwiGLU network."""
    hidden = -(-8 * model.width // 3 // 16) * 16
    return 2 * vocab_size * model.width + model.layers * (4 * model.width**2 + 3 * model.width * hidden)


def compute_optimal_steps(model: DictConfig, vocab_size: int, batch_size: int, multiple: int) -> int:
    """Steps until the model has seen as many tokens as is best for its size, rounded up to a multiple.

    The rule of Chinchilla (arXiv:2203.15556): about 20 tokens for each parameter; ``model.tokens_per_parameter``.
    """
    tokens = model.tokens_per_parameter * parameters(model, vocab_size)
    return -(-tokens // (batch_size * model.context * multiple)) * multiple


OmegaConf.register_new_resolver("parameters", parameters, replace=True)
OmegaConf.register_new_resolver("compute_optimal_steps", compute_optimal_steps, replace=True)
