"""BERT (Devlin et al.) with two heads, cut over tensor-parallel ranks and pipeline stages.

Hugging Face checkpoints load, and outputs and gradients then equal those of `transformers`. Embeddings, pooler and
heads are replicated on all tensor-parallel ranks; GELU and absolute positions only.

Shapes: B = batch, S = sequence, H = hidden, V = vocabulary, C = labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.models.names import LAYER_FIELDS, Names
from workbench.models.replicated import draw_, linear, undrawn
from workbench.parallel.groups import TensorGroup, VirtualTensorGroup
from workbench.parallel.pipeline import WHOLE, Stage
from workbench.parallel.transformer import Dropout, TransformerConfig, TransformerLayer

__all__ = ["BERT_NAMES", "BertConfig", "BertEncoder", "BertForMaskedLM", "BertForSequenceClassification", "BertModel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig(TransformerConfig):
    """Sizes and constants of a BERT model: those of its layers, and what surrounds them.

    The published models have mlp_size = 4 H and train with both dropouts at 0.1; `seed`
    is that of all initial weights and dropout.
    """

    num_layers: int  # transformer layers
    vocab_size: int = 30522  # V; that of the uncased English vocabulary
    max_positions: int = 512  # longest sequence
    num_token_types: int = 2  # segments that token types tell apart

    def __post_init__(self):
        TransformerConfig.__post_init__(self)  # slots make a new class, which super() misses
        for name in ("num_layers", "vocab_size", "max_positions", "num_token_types"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")

    @classmethod
    def tiny(cls, **changes) -> "BertConfig":
        """Give a model for tests: 4 layers of 16, 4 heads, 64 tokens, 32 positions."""
        sizes = {"hidden_size": 16, "num_layers": 4, "num_heads": 4, "mlp_size": 64}
        return cls(**sizes | {"vocab_size": 64, "max_positions": 32} | changes)

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any], **changes: Any) -> "BertConfig":
        """Read the sizes from a config.json, or `PretrainedConfig.to_dict()`; `changes` override fields."""
        if config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"hidden_act: {config['hidden_act']!r} is not 'gelu'")
        if (config.get("position_embedding_type") or "absolute") != "absolute":
            kind = config["position_embedding_type"]
            raise ValueError(f"position_embedding_type: {kind!r} is not 'absolute'")
        fields = {field: config[name] for field, name in HUGGING_FACE_FIELDS.items()}
        return cls(**fields | changes)


HUGGING_FACE_FIELDS = LAYER_FIELDS | {
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
}
"""Our field -> the field of a Hugging Face config."""


PADDING_TOKEN = 0  # [PAD] in BERT's vocabularies; its embedding gets no gradient


class BertEmbeddings(nn.Module):
    """Sum of word, position and token-type embeddings, normalised."""

    def __init__(self, config: BertConfig, **place):
        super().__init__()
        hidden = config.hidden_size
        self.word = word_embedding(config, **place)
        self.position = _embedding(config.max_positions, config, "position", place)
        self.token_type = _embedding(config.num_token_types, config, "token_type", place)
        self.norm = nn.LayerNorm(hidden, config.layer_norm_eps, **place)
        self.dropout = Dropout(config.dropout, seed=config.seed, site="embeddings.dropout")

    def forward(self, ids_BS: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Embed token ids, int64, as [B, S, H]; without `token_type_ids` all are of segment 0."""
        sequence = ids_BS.shape[1]
        if sequence > self.position.num_embeddings:
            raise ValueError(f"ids_BS: {sequence} tokens are more than max_positions {self.position.num_embeddings}")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(ids_BS)
        positions = torch.arange(sequence, device=ids_BS.device)
        x_BSH = self.word(ids_BS) + self.token_type(token_type_ids) + self.position(positions)
        return self.dropout(self.norm(x_BSH))


class BertEncoder(nn.Module):
    """Embeddings and transformer layers, or the part of them that one stage holds.

    `layers` is the ModuleList of this stage's layers; `layer_range` says which of the
    model's layers they are; `embeddings` is None except in the first stage.

    Args:
        config: Sizes.
        group: Tensor-parallel ranks; None is one virtual rank.
        stage: Part of the pipeline; the default is the whole model.
        device, dtype: Of the parameters.
    """

    def __init__(self, config: BertConfig, group: TensorGroup | None = None, stage: Stage = WHOLE, **place):
        super().__init__()
        self.config, self.stage = config, stage
        self.group = VirtualTensorGroup(1) if group is None else group
        self.layer_range = stage.layers(config.num_layers)
        self.embeddings = BertEmbeddings(config, **place) if stage.is_first else None
        self.layers = nn.ModuleList(
            TransformerLayer(config, self.group, site=f"layers.{index}", **place) for index in self.layer_range
        )

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Encode tokens, or carry on from the previous stage's result.

        Args:
            x: Token ids [B, S] in the first stage, hidden states [B, S, H] in others.
            attention_mask: [B, S], 1 for tokens, 0 for padding; None masks nothing.
            token_type_ids: [B, S]; used by the first stage.
        """
        x_BSH = x if self.embeddings is None else self.embeddings(x, token_type_ids)
        mask = None if attention_mask is None else additive_mask(attention_mask, x_BSH.dtype)
        for layer in self.layers:
            x_BSH = layer(x_BSH, mask)
        return x_BSH


class BertForSequenceClassification(nn.Module):
    """Encoder, pooler and classifier; pooler and classifier sit in the last stage.

    Args:
        config, group, stage, device, dtype: As in `BertEncoder`.
        num_labels: C; 1 for a regression.
    """

    def __init__(
        self, config: BertConfig, group: TensorGroup | None = None, num_labels: int = 2, stage: Stage = WHOLE, **place
    ):
        super().__init__()
        self.encoder = BertEncoder(config, group, stage, **place)
        self.pooler: nn.Linear | None = None
        self.classifier: nn.Linear | None = None
        if stage.is_last:
            hidden = config.hidden_size
            self.pooler = linear(hidden, hidden, config, "pooler", place)
            self.dropout = Dropout(config.dropout, seed=config.seed, site="classifier.dropout")
            self.classifier = linear(hidden, num_labels, config, "classifier", place)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Classify sequences by their first token: logits [B, C], or hidden states if this is not the last stage."""
        x_BSH = self.encoder(x, attention_mask, token_type_ids)
        if self.pooler is None or self.classifier is None:
            return x_BSH
        return self.classifier(self.dropout(torch.tanh(self.pooler(x_BSH[:, 0]))))


class BertForMaskedLM(nn.Module):
    """Encoder and the head that predicts masked tokens, its decoder tied to the embeddings.

    In a pipeline the tied weight is needed by the first and by the last stage: each has
    a copy (`tied_weight`), equal at the start, and the two gradients must be added before
    every update (`workbench.parallel.pipeline` does).
    """

    def __init__(self, config: BertConfig, group: TensorGroup | None = None, stage: Stage = WHOLE, **place):
        super().__init__()
        self.encoder = BertEncoder(config, group, stage, **place)
        self.transform: nn.Linear | None = None
        self.decoder: nn.Embedding | None = None
        if stage.is_last:
            hidden = config.hidden_size
            self.transform = linear(hidden, hidden, config, "transform", place)
            self.norm = nn.LayerNorm(hidden, config.layer_norm_eps, **place)
            self.bias = nn.Parameter(torch.zeros(config.vocab_size, **place))
            embeddings = self.encoder.embeddings
            self.decoder = word_embedding(config, **place) if embeddings is None else embeddings.word

    @property
    def tied_weight(self) -> Tensor | None:
        """This stage's copy of the weight that embeds and predicts words [V, H]."""
        if self.decoder is not None:
            return self.decoder.weight
        return None if self.encoder.embeddings is None else self.encoder.embeddings.word.weight

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        """Score every word at every position: logits [B, S, V], or hidden states if this is not the last stage."""
        x_BSH = self.encoder(x, attention_mask, token_type_ids)
        if self.transform is None or self.decoder is None:
            return x_BSH
        x_BSH = self.norm(functional.gelu(self.transform(x_BSH)))
        return functional.linear(x_BSH, self.decoder.weight, self.bias)


def additive_mask(attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a padding mask [B, S] (1 for tokens) into what is added to attention scores: [B, 1, 1, S]."""
    return (1 - attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min


def word_embedding(config: BertConfig, **place) -> nn.Embedding:
    """Make the word embedding, the same wherever it is made; padding embeds to zero."""
    embedding = _embedding(config.vocab_size, config, "word", place, padding_idx=PADDING_TOKEN)
    with torch.no_grad():
        embedding.weight[PADDING_TOKEN].zero_()
    return embedding


def _embedding(num_rows: int, config: BertConfig, name: str, place: Mapping[str, Any], **options: Any) -> nn.Embedding:
    """Make a replicated embedding with drawn rows."""
    embedding = undrawn(nn.Embedding, num_rows, config.hidden_size, place=place, **options)
    draw_(embedding.weight, config, f"embeddings.{name}")
    return embedding


BertModel = BertEncoder | BertForSequenceClassification | BertForMaskedLM


def _plain(name: str) -> str:
    """Drop the model's prefix and the old names of layer norms' weights."""
    name = name.removeprefix("bert.")
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.replace(old, new)
    return name


BERT_NAMES = Names(
    models=(BertEncoder, BertForSequenceClassification, BertForMaskedLM),
    required=("embeddings.", "encoder."),
    plain=_plain,
    layer="encoder.layer",
    cut={
        "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": ("attention.output.dense",),
        "mlp.input": ("intermediate.dense",),
        "mlp.output": ("output.dense",),
    },
    norms={"attention_norm": "attention.output.LayerNorm", "mlp_norm": "output.LayerNorm"},
    before={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.token_type": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
    },
    after={
        "pooler": "pooler.dense",
        "classifier": "classifier",
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        "decoder": "embeddings.word_embeddings",  # of which the last of several stages has its own copy
    },
)
