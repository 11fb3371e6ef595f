"""GPT-2 (Radford et al.) for data-parallel and fully sharded training; `fully_shard` is applied to each of `blocks`.

With equal weights, logits, loss and gradients equal those of `transformers`. The larger sizes are those of Gemini's
table 6.2. Dropout draws from the global generator.

Shapes: B = batch, S = sequence, H = hidden, V = vocabulary, A = heads, D = H / A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.models.replicated import draw_, linear, undrawn

__all__ = ["GPT2", "GPT2Block", "GPT2Config"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GPT2Config:
    """Sizes and constants of a GPT-2."""

    hidden_size: int  # H
    num_layers: int  # blocks
    num_heads: int  # A; a divisor of H
    vocab_size: int = 50257  # V; that of the published byte-pair encoding
    max_positions: int = 1024  # longest sequence
    # Probability of dropping a unit after the embeddings and each sub-layer, and an attention weight
    dropout: float = 0.1
    layer_norm_eps: float = 1e-5  # added to the variance (the published value)
    init_std: float = 0.02  # standard deviation of initial weights (the published value)
    seed: int = 0  # seed of the initial weights

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "vocab_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide hidden_size {self.hidden_size}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: {self.dropout} is not in [0, 1)")

    @property
    def num_parameters(self) -> int:
        """Parameters of the model: embeddings, 12 H^2 + 13 H a block, the last norm."""
        hidden = self.hidden_size
        return (self.vocab_size + self.max_positions + 2) * hidden + self.num_layers * (12 * hidden**2 + 13 * hidden)

    @classmethod
    def small(cls, **changes) -> GPT2Config:
        """Give the published smallest model: 12 blocks of 768, 12 heads, 124 million parameters."""
        return cls(**{"hidden_size": 768, "num_layers": 12, "num_heads": 12} | changes)

    @classmethod
    def tiny(cls, **changes) -> GPT2Config:
        """Give a model for tests: 2 blocks of 32, 4 heads, 64 tokens, 16 positions."""
        sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "max_positions": 16}
        return cls(**sizes | changes)


class GPT2Block(nn.Module):
    """x -> x + attention(norm(x)) -> x + mlp(norm(x)); a position attends to no later position."""

    def __init__(self, config: GPT2Config, index: int):
        super().__init__()
        hidden, self.num_heads, site = config.hidden_size, config.num_heads, f"blocks.{index}"
        residual_std = config.init_std / math.sqrt(2 * config.num_layers)  # two sums a block
        self.attention_norm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.query_key_value = _linear(hidden, 3 * hidden, config, f"{site}.query_key_value", config.init_std)
        self.output = _linear(hidden, hidden, config, f"{site}.output", residual_std)
        self.mlp_norm = nn.LayerNorm(hidden, config.layer_norm_eps)
        self.input = _linear(hidden, 4 * hidden, config, f"{site}.input", config.init_std)
        self.projection = _linear(4 * hidden, hidden, config, f"{site}.projection", residual_std)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """Transform every position: [B, S, H] -> [B, S, H]."""
        x_BSH = x_BSH + self.dropout(self.output(self._attend(self.query_key_value(self.attention_norm(x_BSH)))))
        inner = functional.gelu(self.input(self.mlp_norm(x_BSH)), approximate="tanh")
        return x_BSH + self.dropout(self.projection(inner))

    def _attend(self, qkv: Tensor) -> Tensor:
        """Attend to earlier positions: [B, S, 3H] -> [B, S, H]."""
        q_BASD, k_BASD, v_BASD = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        dropped = self.dropout.p if self.training else 0.0
        context = functional.scaled_dot_product_attention(q_BASD, k_BASD, v_BASD, dropout_p=dropped, is_causal=True)
        return context.transpose(1, 2).flatten(2)


class GPT2(nn.Module):
    """The decoder and its head, whose weight is that of the word embedding."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        self.word = _embedding(config.vocab_size, config, "word")
        self.position = _embedding(config.max_positions, config, "position")
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(GPT2Block(config, index) for index in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, ids_BS: Tensor, labels_BS: Tensor | None = None) -> Tensor:
        """Give logits [B, S, V], or with labels (-100 ignores one) the mean cross-entropy of the next tokens."""
        sequence = ids_BS.shape[1]
        if sequence > self.config.max_positions:
            raise ValueError(f"ids_BS: {sequence} tokens are more than max_positions {self.config.max_positions}")
        x_BSH = self.dropout(self.word(ids_BS) + self.position(torch.arange(sequence, device=ids_BS.device)))
        for block in self.blocks:
            x_BSH = block(x_BSH)
        logits_BSV = functional.linear(self.norm(x_BSH), self.word.weight)
        if labels_BS is None:
            return logits_BSV
        return functional.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), labels_BS[:, 1:].flatten())


def _linear(inputs: int, outputs: int, config: GPT2Config, site: str, std: float) -> nn.Linear:
    """Make a linear with drawn weight and zero bias, where torch puts new tensors."""
    return linear(inputs, outputs, config, site, {"device": torch.get_default_device()}, std=std)


def _embedding(num_rows: int, config: GPT2Config, site: str) -> nn.Embedding:
    """Make an embedding with drawn rows, where torch puts new tensors."""
    made = undrawn(nn.Embedding, num_rows, config.hidden_size, place={"device": torch.get_default_device()})
    draw_(made.weight, config, site)
    return made
