"""What arrives of an activation: how much each method loses, layer by layer, and how far the loss travels.

Real sentences run through a pretrained encoder on virtual tensor-parallel ranks, forward only, in fp32, with learned
codes as they are before training. The best linear code is the truncated singular value decomposition (Eckart and Young,
1936).

Shapes: B = sentences, S = longest sentence, N = tokens (padding left out), H = hidden size, R = tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from workbench.datasets import DataSource, glue
from workbench.models.bert import BertConfig, BertEncoder
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, load_encoder
from workbench.parallel import RowParallelLinear, VirtualTensorGroup

from .method import code_size, method
from .runtime import compress

__all__ = ["BEST_LINEAR_CODE", "EncodedText", "best_linear_code", "encode_text", "error_path", "losses", "lost_share"]

BEST_LINEAR_CODE = "best linear code"  # as large as A2's, fitted to the very message
MAX_TOKENS = 64  # tokens a sentence; few of SST-2 have more
PARTS = {"attention.output": "attention", "mlp.output": "MLP"}  # a layer's reductions, and how a reader calls them


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedText:
    """An encoder, sentences, and the outputs and messages of the encoder without compression."""

    model: BertEncoder  # on virtual ranks
    tokens: Mapping[str, Tensor]  # input_ids, attention_mask and token_type_ids, each [B, S]
    words: Sequence[str]  # the tokens as text, N of them
    hidden_NH: Sequence[Tensor]  # the output of every layer
    messages_RNH: Mapping[tuple[int, str], Tensor]  # (layer, part) to the partial sums of all ranks
    data: tuple[DataSource, ...]  # sources of the text and of the weights

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.hidden_NH[0].shape[1]


@torch.no_grad()
def encode_text(
    sentences: int = 32, *, encoder: str = DEFAULT_ENCODER, task: str = "sst2", tensor_ranks: int = 2, seed: int = 0
) -> EncodedText:
    """Run sentences through an encoder and keep the messages and outputs of every layer."""
    pretrained = load_encoder(encoder, or_stand_in=True)
    text = glue.load(task, "validation", limit=sentences, seed=seed)
    config = BertConfig.from_hugging_face(pretrained.config, dropout=0.0, attention_dropout=0.0, seed=seed)
    model = BertEncoder(config, VirtualTensorGroup(tensor_ranks)).eval()
    load_hugging_face(model, pretrained.state_dict)
    tokens = pretrained.encode(*text.texts, max_tokens=MAX_TOKENS)
    is_token_BS = tokens["attention_mask"].bool()
    messages: dict[tuple[int, str], Tensor] = {}

    def keep(key: tuple[int, str], linear: RowParallelLinear, partials: Sequence[Tensor]) -> Tensor:
        messages[key] = torch.stack([partial_BSH[is_token_BS] for partial_BSH in partials])
        return linear.group.sum(partials)

    linears: list[RowParallelLinear] = []
    for number, layer in enumerate(model.layers):
        for part in PARTS:
            linear = layer.get_submodule(part)
            assert isinstance(linear, RowParallelLinear)
            linear.reduction = partial(keep, (number, part), linear)
            linears.append(linear)
    hidden = _hidden(model, tokens)
    for linear in linears:
        linear.reduction = None
    return EncodedText(
        model=model,
        tokens=tokens,
        words=pretrained.tokenizer.convert_ids_to_tokens(tokens["input_ids"][is_token_BS]),
        hidden_NH=hidden,
        messages_RNH=messages,
        data=(text.source, pretrained.source),
    )


@torch.no_grad()
def _hidden(model: BertEncoder, tokens: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Run the encoder; return the output [N, H] of every layer."""
    is_token_BS = tokens["attention_mask"].bool()
    kept: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple, output_BSH: Tensor) -> None:
        kept.append(output_BSH[is_token_BS])

    with ExitStack() as hooks:
        for layer in model.layers:
            hooks.enter_context(layer.register_forward_hook(keep))
        model(tokens["input_ids"], tokens["attention_mask"], tokens["token_type_ids"])
    return tuple(kept)


def lost_share(arrived: Tensor, sent: Tensor) -> float:
    """Return the norm of the error as a share of the norm of the message: 0 is perfect, an empty message loses 1."""
    return float((arrived - sent).norm() / sent.norm())


def best_linear_code(matrix_NH: Tensor, code_size: int) -> Tensor:
    """Decode a matrix from the best of all linear codes of one size, as [N, H] of that rank: no other loses less."""
    if code_size < 1:
        raise ValueError(f"code_size is {code_size}; it must be at least 1")
    left, values, right = torch.linalg.svd(matrix_NH, full_matrices=False)
    return (left[:, :code_size] * values[:code_size]) @ right[:code_size]


@torch.no_grad()
def losses(text: EncodedText, names: Sequence[str]) -> list[dict]:
    """Return rows of the lost_share of each reduction's result under each method: method, layer from 1, reduction."""
    rows, hidden = [], text.hidden_size
    for name in names:
        codec = method("A2" if name == BEST_LINEAR_CODE else name).codec(hidden, dtype=torch.float32)
        for (layer, part), message_RNH in text.messages_RNH.items():
            sent_NH = message_RNH.sum(0)
            if name == BEST_LINEAR_CODE:
                arrived_NH = best_linear_code(sent_NH, code_size(method("A2").paper_code_size, hidden))
            else:
                arrived_NH = sum(map(codec.for_site(f"{layer}.{part}", hidden), message_RNH))
            keys = {"method": name, "layer": layer + 1, "reduction": PARTS[part]}
            rows.append({**keys, "lost_share": lost_share(arrived_NH, sent_NH)})
    return rows


@torch.no_grad()
def error_path(text: EncodedText, name: str, layers: Iterable[int]) -> list[dict]:
    """Compress some layers; return rows of every output's lost_share: method, layer from 1, is_compressed."""
    compressed = sorted(set(layers))
    codec = method(name).codec(text.hidden_size, dtype=torch.float32)
    with ExitStack() as undo:
        undo.callback(compress(text.model, codec, layers=compressed).remove)
        hidden = _hidden(text.model, text.tokens)
    rows = []
    for number, (now, before) in enumerate(zip(hidden, text.hidden_NH, strict=True)):
        keys = {"method": name, "layer": number + 1, "is_compressed": number in compressed}
        rows.append({**keys, "lost_share": lost_share(now, before)})
    return rows
