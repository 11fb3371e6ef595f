"""BERT's weights under their Hugging Face names."""

from collections.abc import Iterator

from torch import nn

from workbench.models.bert import BertEncoder, BertForMaskedLM, BertForSequenceClassification
from workbench.models.names import Names
from workbench.parallel.linear import ShardedLinear

__all__ = ["BERT_NAMES", "BertModel"]

BertModel = BertEncoder | BertForSequenceClassification | BertForMaskedLM


def _plain(name: str) -> str:
    """Drop the model's prefix and the old names of layer norms' weights."""
    name = name.removeprefix("bert.")
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.replace(old, new)
    return name


def _encoder(model: BertModel) -> BertEncoder:
    return model if isinstance(model, BertEncoder) else model.encoder


def _cut(model: BertModel) -> Iterator[tuple[tuple[str, ...], ShardedLinear]]:
    encoder = _encoder(model)
    for index, layer in zip(encoder.layer_range, encoder.layers, strict=True):
        site = f"encoder.layer.{index}"
        attention = tuple(f"{site}.attention.self.{part}" for part in ("query", "key", "value"))
        yield attention, layer.attention.query_key_value
        yield (f"{site}.attention.output.dense",), layer.attention.output
        yield (f"{site}.intermediate.dense",), layer.mlp.input
        yield (f"{site}.output.dense",), layer.mlp.output


def _replicated(model: BertModel) -> Iterator[tuple[str, nn.Parameter]]:
    for site, module in _replicated_modules(model):
        for name, parameter in module.named_parameters():
            yield f"{site}.{name}", parameter
    if isinstance(model, BertForMaskedLM) and model.decoder is not None:
        yield "cls.predictions.bias", model.bias
        if model.encoder.embeddings is None:  # the last of several stages has its own copy
            yield "embeddings.word_embeddings.weight", model.decoder.weight


def _replicated_modules(model: BertModel) -> Iterator[tuple[str, nn.Module]]:
    encoder = _encoder(model)
    if encoder.embeddings is not None:
        yield "embeddings.word_embeddings", encoder.embeddings.word
        yield "embeddings.position_embeddings", encoder.embeddings.position
        yield "embeddings.token_type_embeddings", encoder.embeddings.token_type
        yield "embeddings.LayerNorm", encoder.embeddings.norm
    for index, layer in zip(encoder.layer_range, encoder.layers, strict=True):
        yield f"encoder.layer.{index}.attention.output.LayerNorm", layer.attention_norm
        yield f"encoder.layer.{index}.output.LayerNorm", layer.mlp_norm
    if isinstance(model, BertForSequenceClassification) and model.classifier is not None:
        yield "pooler.dense", model.pooler
        yield "classifier", model.classifier
    if isinstance(model, BertForMaskedLM) and model.decoder is not None:
        yield "cls.predictions.transform.dense", model.transform
        yield "cls.predictions.transform.LayerNorm", model.norm


BERT_NAMES = Names(
    models=(BertEncoder, BertForSequenceClassification, BertForMaskedLM),
    required=("embeddings.", "encoder."),
    plain=_plain,
    cut=_cut,
    replicated=_replicated,
)
