"""Sizes of Vision Transformers; ViT-1B and ViT-3B are those of FlexTP (sections II-B and V-A).

Inferred, since that paper does not say: hidden size 3072 and 24 layers of ViT-3B (they give its 2.7 billion
parameters), perceptrons four times as wide as the hidden states (they give ViT-1B's 1.2 billion), heads of 64, and
CIFAR-10 images of 32 x 32 in patches of 4, that is, 65 tokens. With 224 x 224 in patches of 16 (197 tokens) the paper's
Table I would need 18 GB/s into and out of each GPU (373 s an epoch, 96 all-reduces of 64 x 197 x 2048 numbers in FP16),
more than PCIe 3 carries; with 65 tokens it is 6 GB/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from workbench.parallel.transformer import TransformerConfig

__all__ = ["VIT_1B", "VIT_3B", "VIT_TINY", "ViTConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig(TransformerConfig):
    """Sizes and constants of a Vision Transformer: those of its layers, and what surrounds them."""

    num_layers: int
    """Transformer layers."""
    image_size: int = 224
    """Pixels of an image's side."""
    patch_size: int = 16
    """Pixels of a patch's side; a divisor of image_size."""
    num_channels: int = 3
    """Colours of a pixel."""

    def __post_init__(self):
        TransformerConfig.__post_init__(self)  # slots make a new class, which super() misses
        for name in ("num_layers", "image_size", "patch_size", "num_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.image_size % self.patch_size:
            raise ValueError(f"patch_size: {self.patch_size} does not divide image_size {self.image_size}")

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def sequence(self) -> int:
        """Tokens of an image: its patches and the class token."""
        return self.num_patches + 1

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, object], **changes) -> "ViTConfig":
        """Read the sizes from a Hugging Face config.

        Args:
            config: Content of a config.json, or `PretrainedConfig.to_dict()`.
            changes: Fields to override, such as dropout.

        Raises:
            ValueError: If the model is of a kind that this file does not cover.
        """
        for name, covered in (("hidden_act", "gelu"), ("qkv_bias", True)):
            if config.get(name, covered) != covered:
                raise ValueError(f"{name}: {config[name]!r} is not {covered!r}")
        fields = {ours: config[theirs] for ours, theirs in HUGGING_FACE_FIELDS.items()}
        return cls(**fields | changes)


HUGGING_FACE_FIELDS = MappingProxyType(
    {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "mlp_size": "intermediate_size",
        "image_size": "image_size",
        "patch_size": "patch_size",
        "num_channels": "num_channels",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "layer_norm_eps": "layer_norm_eps",
        "init_std": "initializer_range",
    }
)
"""Our field -> the field of a Hugging Face config."""


VIT_1B = ViTConfig(hidden_size=2048, num_layers=24, num_heads=32, mlp_size=8192, image_size=32, patch_size=4)
"""ViT-1B: 1.21 billion parameters, 65 tokens an image; what is inferred is said above."""

VIT_3B = ViTConfig(hidden_size=3072, num_layers=24, num_heads=48, mlp_size=12288, image_size=32, patch_size=4)
"""ViT-3B: 2.72 billion parameters, 65 tokens an image; what is inferred is said above."""

VIT_TINY = ViTConfig(hidden_size=128, num_layers=4, num_heads=8, mlp_size=512, image_size=32, patch_size=8)
"""For CIFAR-10 on two cores: 0.8 million parameters, 17 tokens an image, heads for up to eight ranks.

One core trains it on a batch of 64 in about 0.08 s, half of that in its linears' products. Patches of 4 take
0.3 s, or 0.15 s with hidden states of 64.
"""
