"""Sizes of BERT models: Devlin et al. (large, base) and MiniLM (Wang et al., 6 layers of 384)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from workbench.parallel.transformer import TransformerConfig

__all__ = ["BertConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig(TransformerConfig):
    """Sizes and constants of a BERT model: those of its layers, and what surrounds them.

    The published models have mlp_size = 4 H and train with both dropouts at 0.1; `seed`
    is that of all initial weights and dropout.
    """

    num_layers: int
    """Transformer layers."""
    vocab_size: int = 30522
    """V; that of the uncased English vocabulary."""
    max_positions: int = 512
    """Longest sequence."""
    num_token_types: int = 2
    """Segments that token types tell apart."""

    def __post_init__(self):
        TransformerConfig.__post_init__(self)  # slots make a new class, which super() misses
        for name in ("num_layers", "vocab_size", "max_positions", "num_token_types"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")

    @classmethod
    def bert_large(cls, **changes) -> "BertConfig":
        """Give BERT-large: 24 layers of 1024, 16 heads."""
        return cls(**_sizes(1024, 24, 16) | changes)

    @classmethod
    def bert_base(cls, **changes) -> "BertConfig":
        """Give BERT-base: 12 layers of 768, 12 heads."""
        return cls(**_sizes(768, 12, 12) | changes)

    @classmethod
    def mini_lm(cls, **changes) -> "BertConfig":
        """Give MiniLM-L6: 6 layers of 384, 12 heads."""
        return cls(**_sizes(384, 6, 12) | changes)

    @classmethod
    def tiny(cls, **changes) -> "BertConfig":
        """Give a model for tests: 4 layers of 16, 4 heads, 64 tokens, 32 positions."""
        return cls(**_sizes(16, 4, 4) | {"vocab_size": 64, "max_positions": 32} | changes)

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, object], **changes) -> "BertConfig":
        """Read the sizes from a Hugging Face config.

        Args:
            config: Content of a config.json, or `PretrainedConfig.to_dict()`.
            changes: Fields to override, such as dropout.

        Raises:
            ValueError: If the model is of a kind that this file does not cover.
        """
        if config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"hidden_act: {config['hidden_act']!r} is not 'gelu'")
        if (config.get("position_embedding_type") or "absolute") != "absolute":
            kind = config["position_embedding_type"]
            raise ValueError(f"position_embedding_type: {kind!r} is not 'absolute'")
        fields = {ours: config[theirs] for ours, theirs in HUGGING_FACE_FIELDS.items()}
        return cls(**fields | changes)


HUGGING_FACE_FIELDS = MappingProxyType(
    {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "mlp_size": "intermediate_size",
        "vocab_size": "vocab_size",
        "max_positions": "max_position_embeddings",
        "num_token_types": "type_vocab_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "layer_norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
    }
)
"""Our field -> the field of a Hugging Face config."""


def _sizes(hidden_size: int, num_layers: int, num_heads: int) -> dict[str, int]:
    """Sizes of a model whose perceptrons are four times as wide as its hidden states."""
    return {"hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads, "mlp_size": 4 * hidden_size}
