"""GPT-2 (Radford et al.) for data-parallel and fully sharded training; `fully_shard` is applied to each of `blocks`.

Hugging Face checkpoints load, and logits, loss and gradients then equal those of `transformers`. The larger sizes are
those of Gemini's table 6.2. Dropout draws from the global generator.

Shapes: B = batch, S = sequence, H = hidden, V = vocabulary, A = heads, D = H / A.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.parallel.seeds import generator_for

__all__ = ["GPT2", "GPT2Block", "GPT2Config", "load_gpt2_from_hugging_face_", "to_gpt2_of_hugging_face"]

LINEAR_PARTS = {
    "query_key_value": "attn.c_attn",
    "output": "attn.c_proj",
    "input": "mlp.c_fc",
    "projection": "mlp.c_proj",
}
"""A block's linears here -> in Hugging Face checkpoints, where their weights are stored [in, out]."""
NORM_PARTS = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}  # a block's norms here -> in Hugging Face checkpoints


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

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, object], **changes) -> GPT2Config:
        """Read the sizes from a config.json, or `PretrainedConfig.to_dict()`; `changes` override fields."""
        _check_covered(config)
        return cls(**{field: config[name] for field, name in HUGGING_FACE_FIELDS.items()} | changes)


HUGGING_FACE_FIELDS = {
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "vocab_size": "vocab_size",
    "max_positions": "n_positions",
    "dropout": "resid_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
    "init_std": "initializer_range",
}
"""Our field -> the field of a Hugging Face config."""


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


@torch.no_grad()
def load_gpt2_from_hugging_face_(model: GPT2, state_dict: Mapping[str, Tensor]) -> None:
    """Load full Hugging Face weights, named with or without "transformer.", in place; the head's copy is ignored.

    Raises:
        ValueError: If a weight is missing or its shape does not fit; the model is then as it was.
    """
    full = {name.removeprefix("transformer."): tensor for name, tensor in state_dict.items()}
    pairs = list(_pairs(model))
    for name, parameter, is_transposed in pairs:
        if name not in full:
            raise ValueError(f"state_dict: {name!r} is missing")
        shape = tuple(full[name].T.shape if is_transposed else full[name].shape)
        if shape != tuple(parameter.shape):
            raise ValueError(f"{name}: shape {shape} does not fit; it must be {tuple(parameter.shape)}")
    for name, parameter, is_transposed in pairs:
        parameter.copy_(full[name].T if is_transposed else full[name])


def to_gpt2_of_hugging_face(model: GPT2, gradients: bool = False) -> dict[str, Tensor]:
    """Collect weights or gradients, detached, under their Hugging Face names and in Hugging Face's orientation."""
    tensors = {}
    for name, parameter, is_transposed in _pairs(model):
        tensor = (parameter.grad if gradients else parameter).detach()
        tensors[name] = tensor.T if is_transposed else tensor
    return tensors


def _pairs(model: GPT2):
    """Give Hugging Face's name of each parameter, the parameter, and whether theirs is transposed."""
    yield "wte.weight", model.word.weight, False
    yield "wpe.weight", model.position.weight, False
    for index, block in enumerate(model.blocks):
        for table, is_linear in ((NORM_PARTS, False), (LINEAR_PARTS, True)):
            for ours, theirs in table.items():
                for kind in ("weight", "bias"):
                    parameter = getattr(getattr(block, ours), kind)
                    yield f"h.{index}.{theirs}.{kind}", parameter, is_linear and kind == "weight"
    yield "ln_f.weight", model.norm.weight, False
    yield "ln_f.bias", model.norm.bias, False


def _check_covered(config: Mapping[str, object]) -> None:
    """Refuse options by which relatives of GPT-2 differ from it."""
    covered = {"activation_function": "gelu_new", "scale_attn_weights": True, "tie_word_embeddings": True}
    absent = {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    for name, value in (covered | absent).items():
        if config.get(name, value) != value:
            raise ValueError(f"{name}: {config[name]!r} is not {value!r}")
    inner = config.get("n_inner")
    if inner not in (None, 4 * config["n_embd"]):
        raise ValueError(f"n_inner: {inner!r} is not four times n_embd, {4 * config['n_embd']}")
    if len({config.get(f"{kind}_pdrop") for kind in ("resid", "embd", "attn")}) > 1:
        raise ValueError("resid_pdrop: it must equal embd_pdrop and attn_pdrop")


@torch.no_grad()
def _draw_(weight: Tensor, config: GPT2Config, site: str, std: float) -> None:
    """Fill a weight with normal numbers, the same on every rank; one on the meta device is left as it is."""
    if not weight.is_meta:
        drawn = torch.empty(weight.shape)
        drawn.normal_(std=std, generator=generator_for(config.seed, f"{site}.weight"))
        weight.copy_(drawn)


def _linear(inputs: int, outputs: int, config: GPT2Config, site: str, std: float) -> nn.Linear:
    """Make a linear with drawn weight and zero bias, the global generator left alone."""
    made = nn.utils.skip_init(nn.Linear, inputs, outputs, device=torch.get_default_device())
    _draw_(made.weight, config, site, std)
    nn.init.zeros_(made.bias)
    return made


def _embedding(num_rows: int, config: GPT2Config, site: str) -> nn.Embedding:
    """Make an embedding with drawn rows, the global generator left alone."""
    made = nn.utils.skip_init(nn.Embedding, num_rows, config.hidden_size, device=torch.get_default_device())
    _draw_(made.weight, config, site, config.init_std)
    return made
