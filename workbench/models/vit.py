"""The Vision Transformer (Dosovitskiy et al., section 3.1), cut over tensor-parallel ranks.

Hugging Face checkpoints load, and outputs and gradients then equal those of `transformers`. Embeddings, norms and
classifier are replicated on all ranks; images are of one size.

Shapes: B = batch, C = colours, P = patch side, S = tokens (patches and class token), H = hidden, L = labels.
"""

import torch
from torch import Tensor, nn

from workbench.models.replicated import draw_, linear, undrawn
from workbench.models.vit_config import VIT_1B, VIT_3B, VIT_TINY, ViTConfig
from workbench.parallel.dropout import Dropout
from workbench.parallel.groups import TensorGroup, VirtualTensorGroup
from workbench.parallel.transformer import PreNormTransformerLayer

__all__ = ["VIT_1B", "VIT_3B", "VIT_TINY", "ViTConfig", "ViTEncoder", "ViTForImageClassification"]


class ViTEmbeddings(nn.Module):
    """A linear map of every patch, the class token before them, and the positions' embeddings added."""

    def __init__(self, config: ViTConfig, **place):
        super().__init__()
        hidden, patch, colours = config.hidden_size, config.patch_size, config.num_channels
        self.image_shape = (colours, config.image_size, config.image_size)
        self.patch = undrawn(nn.Conv2d, colours, hidden, patch, stride=patch, place=place)
        draw_(self.patch.weight, config, "embeddings.patch")
        nn.init.zeros_(self.patch.bias)
        self.class_token = _drawn((1, 1, hidden), config, "embeddings.class_token", place)
        self.position = _drawn((1, config.sequence, hidden), config, "embeddings.position", place)
        self.dropout = Dropout(config.dropout, seed=config.seed, site="embeddings.dropout")

    def forward(self, images: Tensor) -> Tensor:
        """Embed images.

        Args:
            images: [B, C, side, side], floats.

        Returns:
            [B, S, H].

        Raises:
            ValueError: If the images are of another shape than the model's.
        """
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

    Raises:
        ValueError: If the ranks do not divide what they cut.
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


def _drawn(shape: tuple[int, ...], config: ViTConfig, site: str, place: dict) -> nn.Parameter:
    """Make a replicated parameter with drawn values."""
    parameter = nn.Parameter(torch.empty(shape, **place))
    draw_(parameter, config, site)
    return parameter
