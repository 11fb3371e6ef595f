"""The Vision Transformer (Dosovitskiy et al., section 3.1), cut over tensor-parallel ranks.

Hugging Face checkpoints load, and outputs and gradients then equal those of `transformers`. Embeddings, norms and
classifier are replicated on all ranks; images are of one size.

Shapes: B = batch, C = colours, P = patch side, S = tokens (patches and class token), H = hidden, L = labels.

Sizes of Vision Transformers; ViT-1B and ViT-3B are those of FlexTP (sections II-B and V-A).
Inferred, since that paper does not say: hidden size 3072 and 24 layers of ViT-3B (they give its 2.7 billion
parameters), perceptrons four times as wide as the hidden states (they give ViT-1B's 1.2 billion), heads of 64, and
CIFAR-10 images of 32 x 32 in patches of 4, that is, 65 tokens. With 224 x 224 in patches of 16 (197 tokens) the paper's
Table I would need 18 GB/s into and out of each GPU (373 s an epoch, 96 all-reduces of 64 x 197 x 2048 numbers in FP16),
more than PCIe 3 carries; with 65 tokens it is 6 GB/s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.models.names import LAYER_FIELDS, Names
from workbench.models.replicated import draw_, linear, undrawn
from workbench.parallel.groups import TensorGroup, VirtualTensorGroup
from workbench.parallel.transformer import Dropout, PreNormTransformerLayer, TransformerConfig

__all__ = ["VIT_1B", "VIT_3B", "VIT_NAMES", "VIT_TINY", "ViTConfig", "ViTEncoder", "ViTForImageClassification"]
__all__ += ["ViTModel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTConfig(TransformerConfig):
    """Sizes and constants of a Vision Transformer: those of its layers, and what surrounds them."""

    num_layers: int  # transformer layers
    image_size: int = 224  # pixels of an image's side
    patch_size: int = 16  # pixels of a patch's side; a divisor of image_size
    num_channels: int = 3  # colours of a pixel

    def __post_init__(self):
        TransformerConfig.__post_init__(self)  # slots make a new class, which super() misses
        for name in ("num_layers", "image_size", "patch_size", "num_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.image_size % self.patch_size:
            raise ValueError(f"patch_size: {self.patch_size} does not divide image_size {self.image_size}")

    @property
    def sequence(self) -> int:
        """Tokens of an image: its patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any], **changes: Any) -> "ViTConfig":
        """Read the sizes from a config.json, or `PretrainedConfig.to_dict()`; `changes` override fields."""
        for name, covered in (("hidden_act", "gelu"), ("qkv_bias", True)):
            if config.get(name, covered) != covered:
                raise ValueError(f"{name}: {config[name]!r} is not {covered!r}")
        fields = {field: config[key] for field, key in HUGGING_FACE_FIELDS.items()}
        return cls(**fields | changes)


HUGGING_FACE_FIELDS = LAYER_FIELDS | {name: name for name in ("image_size", "patch_size", "num_channels")}
"""Our field -> the field of a Hugging Face config."""


# ViT-1B: 1.21 billion parameters, 65 tokens an image; what is inferred is said above
VIT_1B = ViTConfig(hidden_size=2048, num_layers=24, num_heads=32, mlp_size=8192, image_size=32, patch_size=4)

# ViT-3B: 2.72 billion parameters, 65 tokens an image; what is inferred is said above
VIT_3B = ViTConfig(hidden_size=3072, num_layers=24, num_heads=48, mlp_size=12288, image_size=32, patch_size=4)

VIT_TINY = ViTConfig(hidden_size=128, num_layers=4, num_heads=8, mlp_size=512, image_size=32, patch_size=8)
"""For CIFAR-10 on two cores: 0.8 million parameters, 17 tokens an image, heads for up to eight ranks.

One core trains it on a batch of 64 in about 0.08 s, half of that in its linears' products. Patches of 4 take
0.3 s, or 0.15 s with hidden states of 64.
"""


class ViTEmbeddings(nn.Module):
    """A linear map of every patch, the class token before them, and the positions' embeddings added."""

    def __init__(self, config: ViTConfig, **place):
        super().__init__()
        hidden, patch, colours = config.hidden_size, config.patch_size, config.num_channels
        self.image_shape = (colours, config.image_size, config.image_size)
        self.patch = undrawn(nn.Conv2d, colours, hidden, patch, stride=patch, place=place)
        draw_(self.patch.weight, config, "embeddings.patch")
        assert self.patch.bias is not None
        nn.init.zeros_(self.patch.bias)
        self.class_token = _drawn((1, 1, hidden), config, "embeddings.class_token", place)
        self.position = _drawn((1, config.sequence, hidden), config, "embeddings.position", place)
        self.dropout = Dropout(config.dropout, seed=config.seed, site="embeddings.dropout")

    def forward(self, images: Tensor) -> Tensor:
        """Embed images, floats [B, C, side, side], as [B, S, H]."""
        if tuple(images.shape[1:]) != self.image_shape:
            raise ValueError(f"images: shape {tuple(images.shape)} is not [B, *{self.image_shape}]")
        patches_BSH = self.patch(images).flatten(2).mT
        class_token_B1H = self.class_token.expand(len(images), -1, -1)
        x_BSH = torch.cat([class_token_B1H.to(patches_BSH.dtype), patches_BSH], 1)
        return self.dropout(x_BSH + self.position)


class ViTEncoder(nn.Module):
    """Embeddings, transformer layers and the final norm; `layers` is the ModuleList of the layers.

    Args:
        config: Sizes.
        group: Tensor-parallel ranks; None is one virtual rank.
        device, dtype: Of the parameters.
    """

    def __init__(self, config: ViTConfig, group: TensorGroup | None = None, **place):
        super().__init__()
        self.config = config
        self.group = VirtualTensorGroup(1) if group is None else group
        self.embeddings = ViTEmbeddings(config, **place)
        self.layers = nn.ModuleList(
            PreNormTransformerLayer(config, self.group, site=f"layers.{index}", **place)
            for index in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, **place)

    def forward(self, images: Tensor) -> Tensor:
        """Encode images: [B, C, side, side] -> [B, S, H], the class token first."""
        x_BSH = self.embeddings(images)
        for layer in self.layers:
            x_BSH = layer(x_BSH)
        return self.norm(x_BSH)


class ViTForImageClassification(nn.Module):
    """Encoder and a linear classifier on the class token.

    Args:
        config, group, device, dtype: As in `ViTEncoder`.
        num_labels: L; CIFAR-10's and the digits' ten by default.
    """

    def __init__(self, config: ViTConfig, group: TensorGroup | None = None, num_labels: int = 10, **place):
        super().__init__()
        self.encoder = ViTEncoder(config, group, **place)
        self.classifier = linear(config.hidden_size, num_labels, config, "classifier", place)

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: [B, C, side, side] -> logits [B, L]."""
        return self.classifier(self.encoder(images)[:, 0])


def _drawn(shape: tuple[int, ...], config: ViTConfig, site: str, place: Mapping[str, Any]) -> nn.Parameter:
    """Make a replicated parameter with drawn values."""
    parameter = nn.Parameter(torch.empty(shape, **place))
    draw_(parameter, config, site)
    return parameter


ViTModel = ViTEncoder | ViTForImageClassification

EARLIER = (
    (r"^encoder\.layer\.", "layers."),
    (r"attention\.attention\.(query|key|value)\.", lambda match: f"attention.{match[1][0]}_proj."),
    (r"attention\.output\.dense\.", "attention.o_proj."),
    (r"intermediate\.dense\.", "mlp.fc1."),
    (r"(?<=\d\.)output\.dense\.", "mlp.fc2."),
)
"""Pattern in the names of earlier files -> what it has become."""


def _plain(name: str) -> str:
    """Drop the model's prefix and write earlier names as they are now."""
    name = name.removeprefix("vit.")
    for pattern, now in EARLIER:
        name = re.sub(pattern, now, name)
    return name


VIT_NAMES = Names(
    models=(ViTEncoder, ViTForImageClassification),
    required=("embeddings.", "layers.", "layernorm."),
    plain=_plain,
    layer="layers",
    cut={
        "attention.query_key_value": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attention.output": ("attention.o_proj",),
        "mlp.input": ("mlp.fc1",),
        "mlp.output": ("mlp.fc2",),
    },
    norms={"attention_norm": "layernorm_before", "mlp_norm": "layernorm_after"},
    before={
        "embeddings.class_token": "embeddings.cls_token",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.patch": "embeddings.patch_embeddings.projection",
    },
    after={"norm": "layernorm", "classifier": "classifier"},
)
