"""The Vision Transformer's weights under their Hugging Face names, those of older files included."""

import re
from collections.abc import Iterator

from torch import nn

from workbench.models.names import Names
from workbench.models.vit import ViTEncoder, ViTForImageClassification
from workbench.parallel.linear import ShardedLinear

__all__ = ["VIT_NAMES", "ViTModel"]

ViTModel = ViTEncoder | ViTForImageClassification

EARLIER = (
    (r"^encoder\.layer\.", "layers."),
    (r"attention\.attention\.(query|key|value)\.", lambda found: f"attention.{found[1][0]}_proj."),
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


def _encoder(model: ViTModel) -> ViTEncoder:
    return model if isinstance(model, ViTEncoder) else model.encoder


def _cut(model: ViTModel) -> Iterator[tuple[tuple[str, ...], ShardedLinear]]:
    for index, layer in enumerate(_encoder(model).layers):
        site = f"layers.{index}"
        yield tuple(f"{site}.attention.{part}_proj" for part in "qkv"), layer.attention.query_key_value
        yield (f"{site}.attention.o_proj",), layer.attention.output
        yield (f"{site}.mlp.fc1",), layer.mlp.input
        yield (f"{site}.mlp.fc2",), layer.mlp.output


def _replicated(model: ViTModel) -> Iterator[tuple[str, nn.Parameter]]:
    embeddings = _encoder(model).embeddings
    yield "embeddings.cls_token", embeddings.class_token
    yield "embeddings.position_embeddings", embeddings.position
    for site, module in _replicated_modules(model):
        for name, parameter in module.named_parameters():
            yield f"{site}.{name}", parameter


def _replicated_modules(model: ViTModel) -> Iterator[tuple[str, nn.Module]]:
    encoder = _encoder(model)
    yield "embeddings.patch_embeddings.projection", encoder.embeddings.patch
    for index, layer in enumerate(encoder.layers):
        yield f"layers.{index}.layernorm_before", layer.attention_norm
        yield f"layers.{index}.layernorm_after", layer.mlp_norm
    yield "layernorm", encoder.norm
    if isinstance(model, ViTForImageClassification):
        yield "classifier", model.classifier


VIT_NAMES = Names(
    models=(ViTEncoder, ViTForImageClassification),
    required=("embeddings.", "layers.", "layernorm."),
    plain=_plain,
    cut=_cut,
    replicated=_replicated,
)
