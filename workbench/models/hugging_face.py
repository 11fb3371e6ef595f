"""Moving BERT weights between our cut models and Hugging Face's full ones.

What: the one table of names, read in both directions, so that a model, or a stage of
one, loads exactly what it holds and its weights and gradients can be compared with
those of `transformers`.
Simplified: only the modules of `workbench.models.bert`; other entries are reported.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.models.bert import BertEncoder, BertForMaskedLM, BertForSequenceClassification
from workbench.parallel.linear import ShardedLinear

__all__ = ["LoadedWeights", "load_hugging_face", "to_hugging_face"]

BertModel = BertEncoder | BertForSequenceClassification | BertForMaskedLM


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedWeights:
    """What a checkpoint did and did not provide."""

    missing: tuple[str, ...]
    """Weights of a head that the checkpoint lacks; they keep their initial values."""
    unused: tuple[str, ...]
    """Entries that the model has no place for (or that other stages hold)."""


@torch.no_grad()
def load_hugging_face(model: BertModel, state_dict: Mapping[str, Tensor]) -> LoadedWeights:
    """Load Hugging Face weights, cut to the local shards.

    Args:
        model: Model, or stage of one, to fill.
        state_dict: Full tensors; names with or without the prefix "bert.", layer norms
            as weight and bias or, as in older files, gamma and beta.

    Returns:
        What was missing or left over.

    Raises:
        ValueError: If a weight of the encoder is missing or a shape does not fit.
    """
    full = {_plain_name(name): tensor for name, tensor in state_dict.items()}
    wanted = [name for name, *_ in _replicated(model)]
    wanted += [f"{name}.{kind}" for names, _ in _cut(model) for name in names for kind in KINDS]
    missing = tuple(name for name in wanted if name not in full)
    if lacking := [name for name in missing if name.startswith(ENCODER_PREFIXES)]:
        raise ValueError(f"state_dict: {len(lacking)} weights are missing, first {lacking[0]!r}")
    for name, parameter in _replicated(model):
        if name in full:
            _copy_(name, parameter, full[name])
    for names, linear in _cut(model):
        weight, bias = (torch.cat([full[f"{name}.{kind}"] for name in names]) for kind in KINDS)
        linear.load_full_(weight, bias)
    return LoadedWeights(missing=missing, unused=tuple(sorted(full.keys() - set(wanted))))


def to_hugging_face(model: BertModel, gradients: bool = False) -> dict[str, Tensor]:
    """Collect the full weights (or gradients) under their Hugging Face names.

    Every tensor-parallel rank must call it: the shards are gathered.

    Args:
        model: Model or stage.
        gradients: Collect gradients instead of values.

    Returns:
        Name without the prefix "bert." -> full tensor, detached; parameters that have
        no gradient are left out.
    """
    full = {
        name: (parameter.grad if gradients else parameter).detach()
        for name, parameter in _replicated(model)
        if not gradients or parameter.grad is not None
    }
    for names, linear in _cut(model):
        parts = [linear.full_weight(gradients), linear.full_bias(gradients)]
        for kind, part in zip(KINDS, parts, strict=True):
            blocks = part.chunk(len(names))
            full |= {f"{name}.{kind}": b for name, b in zip(names, blocks, strict=True)}
    return full


KINDS = ("weight", "bias")
ENCODER_PREFIXES = ("embeddings.", "encoder.")


def _plain_name(name: str) -> str:
    """Drop the model's prefix and the old names of layer norms' weights."""
    name = name.removeprefix("bert.")
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.replace(old, new)
    return name


def _encoder(model: BertModel) -> BertEncoder:
    return model if isinstance(model, BertEncoder) else model.encoder


def _cut(model: BertModel) -> Iterator[tuple[tuple[str, ...], ShardedLinear]]:
    """Yield the cut linears with the names of the linears that each is a stack of."""
    encoder = _encoder(model)
    for index, layer in zip(encoder.layer_range, encoder.layers, strict=True):
        site = f"encoder.layer.{index}"
        attention = tuple(f"{site}.attention.self.{part}" for part in ("query", "key", "value"))
        yield attention, layer.attention.query_key_value
        yield (f"{site}.attention.output.dense",), layer.attention.output
        yield (f"{site}.intermediate.dense",), layer.mlp.input
        yield (f"{site}.output.dense",), layer.mlp.output


def _replicated(model: BertModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that every tensor-parallel rank holds whole."""
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


def _copy_(name: str, parameter: nn.Parameter, full: Tensor) -> None:
    if parameter.shape != full.shape:
        raise ValueError(
            f"{name}: shape {tuple(full.shape)} does not fit; it must be {tuple(parameter.shape)}"
        )
    parameter.copy_(full)
