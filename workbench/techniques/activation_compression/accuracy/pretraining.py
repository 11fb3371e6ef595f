"""Train further under compression as a masked language model, drop the codecs, and fine-tune without: table 8 in small.

What: `pretrain_then_fine_tune` is one cell (method, seed): WikiText-2 under compression, then every task without.
Source: "Does compressing activations help model parallel training?", section 4.4, takeaway 5 and table 8; Devlin et
al., BERT, section 3.1 for the masking (15 % of the tokens: 80 % masked, 10 % random, 10 % left).
Simplified: a proxy. The paper pre-trains BERT-large from nothing on Wikipedia and books; here an encoder that is
pretrained already learns on for some hundred steps, so its scores compare in order only. The masks are drawn once; the
head is new and its words are the frozen word embeddings.
Left out: sentence-pair prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workbench.datasets import DataSource, wikitext2
from workbench.models.hugging_face import to_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import VirtualTensorGroup, generator_for
from workbench.study.cells import named
from workbench.training.batches import Examples
from workbench.training.loop import Recipe, train

from .cells import fine_tuning_cells
from .fine_tuning import fine_tuning_of, mean_loss_at_end, train_and_score
from .model import masked_words, on_virtual_ranks
from .setting import PreTraining

__all__ = ["masked_blocks", "pretrain_then_fine_tune"]

MASKED_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.15, 0.1, 0.1  # the last two of the first
LINES_AT_A_TIME = 500
NOT_ASKED = -100  # the label that cross entropy leaves out


@named("activation_compression/pretrain_then_fine_tune")
def pretrain_then_fine_tune(
    *,
    method: str,
    seed: int,
    tasks: Sequence[str],
    num_blocks: int = 4_000,
    epochs: int = 1,
    learning_rate: float = 1e-4,
    max_tokens: int = 64,
    batch: int = 16,
    limit: int | None = None,
    precision: str = "fp32",
    encoder: str = DEFAULT_ENCODER,
    tp: int = 2,
    pp: int = 2,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train a masked language model under compression, then fine-tune it on each task without codecs.

    Args:
        method: a row of table 1, for the masked language model.
        seed: of heads, codecs, masks and the order of the examples.
        tasks: GLUE tasks, fine-tuned one by one from the same weights.
        num_blocks: pieces of WikiText-2, of max_tokens each, that are learned from.
        epochs: times that every piece is seen.
        learning_rate: of the masked language model, at its peak.
        max_tokens: of a piece.
        batch: pieces of a step.
        limit: training examples of a task, at most.
        precision: "fp32" or "bf16".
        encoder: a pretrained encoder's name, or "stand-in".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        device: of model and batches.

    Returns:
        Plain values: `pretraining_loss` at the end, and `cells`, what `fine_tune` returns for each task, each with
        the method of the masked language model as its `method`.

    Raises:
        ValueError: for an argument outside its range, before any work.
    """
    recipe = Recipe(
        epochs=epochs, batch=batch, learning_rate=learning_rate, precision=precision, seed=seed, device=device
    )
    setting = PreTraining(
        method=method, recipe=recipe, num_blocks=num_blocks, max_tokens=max_tokens, encoder=encoder, tp=tp, pp=pp
    )
    cells = fine_tuning_cells(
        tasks,
        ["w/o"],
        [seed],
        max_tokens=128,
        precision=precision,
        limit=limit,
        encoder=encoder,
        tp=tp,
        pp=pp,
        device=device,
    )
    later = [fine_tuning_of(**cell) for cell in cells]
    found = load_encoder(encoder, or_stand_in=True)
    trained, loss, source = _pretrained(setting, found)
    cells = [train_and_score(each, trained) for each in later]
    cells = [cell | {"method": method, "data": [*cell["data"], source.as_record()]} for cell in cells]
    return {"method": method, "seed": seed, "pretraining_loss": loss, "cells": cells}


def _pretrained(setting: PreTraining, encoder: PretrainedEncoder) -> tuple[PretrainedEncoder, float, DataSource]:
    """Train the masked language model; give the encoder with new weights, the loss at the end, the text's source."""
    text = wikitext2.load("train")
    examples = masked_blocks(text.columns["text"], encoder, setting)
    pipeline = on_virtual_ranks(setting, encoder, masked_words(), VirtualTensorGroup(setting.tp))
    run = train(pipeline, examples, setting.recipe)
    weights = {_plain(name): value for name, value in encoder.state_dict.items()}
    for part in pipeline.parts:
        weights |= {name: value.cpu() for name, value in to_hugging_face(part).items()}
    return replace(encoder, state_dict=weights), mean_loss_at_end(run), text.source


def _plain(name: str) -> str:
    return name.removeprefix("bert.")


def masked_blocks(lines: Sequence[str], encoder: PretrainedEncoder, setting: PreTraining) -> Examples:
    """Cut running text into pieces and mask some of their words.

    Args:
        lines: of running text; only as many are read as the pieces need.
        encoder: whose tokenizer reads it.
        setting: number and length of the pieces, and the seed of the masks.

    Returns:
        Pieces between [CLS] and [SEP]; labels [pieces, tokens] are -100 where no word is asked for.

    Raises:
        ValueError: if the text is too short.
    """
    tokenizer, inner = encoder.tokenizer, setting.max_tokens - 2
    tokens = _first_tokens(lines, encoder, setting.num_blocks * inner)
    num_blocks = min(setting.num_blocks, len(tokens) // inner)
    if num_blocks < setting.recipe.batch:
        raise ValueError(f"max_tokens is {setting.max_tokens}: the text gives {num_blocks} pieces, fewer than a batch")
    blocks_BS = torch.tensor(tokens[: num_blocks * inner]).view(num_blocks, inner)
    ends = (torch.full((num_blocks, 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    before, after = ends
    ids_BS, labels_BS = _masked(torch.cat((before, blocks_BS, after), 1), encoder, setting.recipe.seed)
    return Examples(ids=list(ids_BS), types=list(torch.zeros_like(ids_BS)), labels=labels_BS)


def _first_tokens(lines: Sequence[str], encoder: PretrainedEncoder, wanted: int) -> list[int]:
    """Encode lines until there are enough tokens."""
    tokens: list[int] = []
    for start in range(0, len(lines), LINES_AT_A_TIME):
        part = list(lines[start : start + LINES_AT_A_TIME])
        for line in encoder.tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]:
            tokens += line
        if len(tokens) >= wanted:
            break
    return tokens


def _masked(ids_BS: Tensor, encoder: PretrainedEncoder, seed: int) -> tuple[Tensor, Tensor]:
    generator = generator_for(seed, "masked words")
    tokenizer = encoder.tokenizer
    asked_BS = torch.rand(ids_BS.shape, generator=generator) < MASKED_SHARE
    asked_BS[:, 0] = asked_BS[:, -1] = False
    fate_BS = torch.rand(ids_BS.shape, generator=generator)
    random_BS = torch.randint(len(tokenizer), ids_BS.shape, generator=generator)
    shown_BS = torch.where(fate_BS < KEPT_SHARE, ids_BS, torch.full_like(ids_BS, tokenizer.mask_token_id))
    shown_BS = torch.where((fate_BS >= KEPT_SHARE) & (fate_BS < KEPT_SHARE + RANDOM_SHARE), random_BS, shown_BS)
    labels_BS = torch.where(asked_BS, ids_BS, torch.full_like(ids_BS, NOT_ASKED))
    return torch.where(asked_BS, shown_BS, ids_BS), labels_BS
