"""A transformer layer cut over tensor-parallel ranks: two all-reduces forward, two backward (Megatron-LM, section 3).

Post-norm as in Vaswani et al., pre-norm as in Dosovitskiy et al., equations 2 and 3.

Shapes: B = batch, S = sequence, H = hidden, M = inner size, T = tensor ranks, A = heads of one rank, D = H / heads.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.parallel.groups import TensorGroup
from workbench.parallel.linear import BERT_INIT_STD, ColumnParallelLinear, RowParallelLinear
from workbench.parallel.seeds import generator_for
from workbench.parallel.shards import check_divides
from workbench.recomputation import changes_once

__all__ = ["Attention", "Dropout", "Mlp", "PreNormTransformerLayer", "TransformerConfig", "TransformerLayer"]


class Dropout(nn.Module):
    """Zero units with a probability and scale the rest; equal seed and site drop the same units on all ranks."""

    def __init__(self, probability: float, *, seed: int = 0, site: str = "dropout"):
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"probability: {probability} is not in [0, 1)")
        self.probability, self.site = probability, site
        self.generator = generator_for(seed, site)

    @property
    def is_active(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.probability > 0

    def scale(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw what a tensor is multiplied with: 0 or 1 / (1 - probability), with the device and dtype of `like`."""
        with changes_once(self, self.site, self.generator.get_state, self.generator.set_state):
            kept = torch.rand(shape, generator=self.generator) >= self.probability
        return kept.to(device=like.device, dtype=like.dtype) / (1 - self.probability)

    def forward(self, x: Tensor) -> Tensor:
        """Drop units of a replicated tensor."""
        return x * self.scale(tuple(x.shape), x) if self.is_active else x


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Sizes and constants of one transformer layer."""

    hidden_size: int  # H
    num_heads: int  # attention heads; a divisor of H
    mlp_size: int  # inner units of the perceptron
    dropout: float = 0.0  # probability of dropping a unit of each sub-layer's result
    attention_dropout: float = 0.0  # probability of dropping an attention weight
    layer_norm_eps: float = 1e-12  # added to the variance (BERT's value)
    init_std: float = BERT_INIT_STD  # standard deviation of initial weights
    seed: int = 0  # seed of weights and dropout

    def __post_init__(self):
        for name in ("hidden_size", "num_heads", "mlp_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide hidden_size {self.hidden_size}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not in [0, 1)")


class Attention(nn.Module):
    """Self-attention: `query_key_value` cut by heads, which the ranks divide, `output` summed over ranks."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, site: str, **place):
        super().__init__()
        self.local_heads = check_divides("num_heads", config.num_heads, group.size)
        self.num_heads, self.group = config.num_heads, group
        hidden, common = config.hidden_size, _common(config, place)
        self.query_key_value = ColumnParallelLinear(
            hidden, 3 * hidden, group, num_blocks=3, site=f"{site}.query_key_value", **common
        )
        self.output = RowParallelLinear(hidden, hidden, group, site=f"{site}.output", **common)
        self.dropout = Dropout(config.attention_dropout, seed=config.seed, site=f"{site}.dropout")

    def forward(self, x_BSH: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every position look at every unmasked one: [B, S, H], the same on every rank.

        The mask is added to attention scores and broadcastable to [B, heads, S, S].
        """
        scale = None
        if self.dropout.is_active:
            batch, sequence, _ = x_BSH.shape
            scale = self.dropout.scale((batch, self.num_heads, sequence, sequence), x_BSH)
        contexts = []
        for qkv, rank in zip(self.query_key_value.shards(x_BSH), self.group.local_ranks, strict=True):
            heads = slice(rank * self.local_heads, (rank + 1) * self.local_heads)
            contexts.append(self._attend(qkv, mask, None if scale is None else scale[:, heads]))
        return self.output(contexts)

    def _attend(self, qkv: Tensor, mask: Tensor | None, scale: Tensor | None) -> Tensor:
        """Attend with one rank's heads: [B, S, 3H/T] -> [B, S, H/T]."""
        q_BASD, k_BASD, v_BASD = (
            part.unflatten(-1, (self.local_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1)
        )
        if scale is None and not _is_narrow_on_cpu(q_BASD):
            context_BASD = functional.scaled_dot_product_attention(q_BASD, k_BASD, v_BASD, attn_mask=mask)
        else:
            scores_BASS = (q_BASD * q_BASD.shape[-1] ** -0.5) @ k_BASD.mT
            scores_BASS = scores_BASS if mask is None else scores_BASS + mask.to(scores_BASS.dtype)
            weights_BASS = torch.softmax(scores_BASS, -1)
            context_BASD = (weights_BASS if scale is None else weights_BASS * scale) @ v_BASD
        return context_BASD.transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    """Two linears with a GELU between: `input` cut by units, `output` summed over ranks."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, site: str, **place):
        super().__init__()
        hidden, inner, common = config.hidden_size, config.mlp_size, _common(config, place)
        self.input = ColumnParallelLinear(hidden, inner, group, site=f"{site}.input", **common)
        self.output = RowParallelLinear(inner, hidden, group, site=f"{site}.output", **common)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """Apply the perceptron at every position: [B, S, H] -> [B, S, H]."""
        return self.output([functional.gelu(inner) for inner in self.input.shards(x_BSH)])


class TransformerLayer(nn.Module):
    """x -> norm(x + attention(x)) -> norm(x + mlp(x)), as in BERT.

    Args:
        config: Sizes.
        group: The tensor-parallel ranks.
        site: Name of the layer in its model; seeds its weights and labels its traffic.
        device, dtype: Of the parameters.
    """

    def __init__(
        self,
        config: TransformerConfig,
        group: TensorGroup,
        *,
        site: str = "layer",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.site = site
        self.attention = Attention(config, group, f"{site}.attention", **place)
        self.attention_dropout = Dropout(config.dropout, seed=config.seed, site=f"{site}.attention_dropout")
        self.attention_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, **place)
        self.mlp = Mlp(config, group, f"{site}.mlp", **place)
        self.mlp_dropout = Dropout(config.dropout, seed=config.seed, site=f"{site}.mlp_dropout")
        self.mlp_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, **place)

    def forward(self, x_BSH: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform every position; arguments as in `Attention.forward`."""
        attended = self.attention_dropout(self.attention(x_BSH, mask))
        x_BSH = self.attention_norm(x_BSH + attended)
        return self.mlp_norm(x_BSH + self.mlp_dropout(self.mlp(x_BSH)))


class PreNormTransformerLayer(TransformerLayer):
    """x -> x + attention(norm(x)) -> x + mlp(norm(x)), with the parameters of the post-norm layer."""

    def forward(self, x_BSH: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform every position, as `TransformerLayer.forward` does."""
        attended = self.attention(self.attention_norm(x_BSH), mask)
        x_BSH = x_BSH + self.attention_dropout(attended)
        return x_BSH + self.mlp_dropout(self.mlp(self.mlp_norm(x_BSH)))


def _is_narrow_on_cpu(x: Tensor) -> bool:
    """Return whether torch's fused attention is slower: by 4 times, in bfloat16 on a CPU, at 30 to 100 tokens."""
    return x.device.type == "cpu" and x.dtype.itemsize < torch.float32.itemsize


def _common(config: TransformerConfig, place: dict) -> dict:
    return {"seed": config.seed, "init_std": config.init_std, **place}
