"""Trainings of tables 5, 8, 15 and 16: fine-tuning under compression, and after a pre-training under compression.

Virtual and real ranks run the same loop on the same batches.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workbench.datasets import Dataset, DataSource, glue, wikitext2
from workbench.launch import run_on_ranks
from workbench.models.hugging_face import to_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import Traffic, VirtualTensorGroup, generator_for
from workbench.parallel.pipeline import open_mesh
from workbench.study import training
from workbench.study.cells import named
from workbench.training.batches import Examples
from workbench.training.loop import Recipe, Trainable, TrainingRun, predict, train
from workbench.training.metrics import chance_score, glue_scores

from .cells import fine_tuning_cells
from .fine_tuned_model import (
    BYTES,
    FineTuning,
    Ledger,
    PreTraining,
    classifier,
    masked_words,
    on_real_ranks,
    on_virtual_ranks,
)

__all__ = [
    "NOT_ASKED",
    "compare_on_ranks",
    "fine_tune",
    "fine_tune_on_ranks",
    "masked_blocks",
    "pretrain_then_fine_tune",
]

Build = Callable[[FineTuning, PretrainedEncoder], tuple[Trainable, Traffic]]
PRELOAD = (__name__, "transformers.models.bert.tokenization_bert")  # imported once for all ranks
# Devlin et al., BERT, section 3.1: 15 % of the tokens are asked for, of these 80 % masked, 10 % random, 10 % kept.
MASKED_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.15, 0.1, 0.1  # the last two of the first
LINES_AT_A_TIME = 500
NOT_ASKED = -100  # the label that cross entropy leaves out


@named("activation_compression/fine_tune")
def fine_tune(
    *,
    task: str,
    method: str,
    seed: int,
    layers: int | Sequence[int] | None = None,
    max_tokens: int = 128,
    batch: int = 32,
    epochs: int = 2,
    learning_rate: float = 1e-4,
    limit: int | None = None,
    precision: str = "fp32",
    error_feedback: bool = False,
    fixed_length: bool = False,
    encoder: str = DEFAULT_ENCODER,
    tp: int = 2,
    pp: int = 2,
    device: str = "cpu",
) -> dict[str, Any]:
    """Fine-tune on virtual ranks in this process, and score on the validation split.

    Args:
        task: a GLUE task, such as "sst2".
        method: a row of table 1, such as "A1".
        seed: of head, codecs, order of the examples and drawn examples; equal seeds give equal bits.
        layers: how many of the last layers are compressed, or their indices; None is the last half.
        max_tokens: longer sequences are cut to as many tokens.
        batch: examples of a step.
        epochs: times that every example is seen.
        learning_rate: at its peak.
        limit: training examples drawn with the seed; None takes all.
        precision: "fp32" or "bf16"; messages have values of 4 or 2 bytes.
        error_feedback: each call site adds what its last message lost to the next; needs fixed_length.
        fixed_length: all batches have one shape: padded to the longest sequence there is, rest of an epoch left out.
        encoder: a pretrained encoder's name, or "stand-in".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        device: of model and batches.

    Returns:
        Plain values: `score` in the task's leading `metric` and all `scores`, `chance` of a constant prediction,
        `train_loss` at the end, bytes a rank sends in a step, seconds, and where text and weights came from.

    Raises:
        ValueError: for an argument outside its range, before any work.
    """
    return _run(_setting_of(locals()), _on_virtual_ranks) | {"ranks": "virtual"}


def fine_tune_on_ranks(*, timeout_s: float = 600, **arguments: Any) -> dict[str, Any]:
    """Fine-tune on tp times pp real ranks of this machine, stopped after a time limit.

    Returns:
        As `fine_tune`; bytes are those of the stages' first ranks together.
    """
    setting = _setting_of(arguments)
    by_rank = run_on_ranks(_run, setting.tp * setting.pp, setting, _on_real_ranks, timeout_s=timeout_s, preload=PRELOAD)
    of_stages = by_rank[:: setting.tp]
    sums = {name: sum(cell[name] for cell in of_stages) for name in BYTES}
    return of_stages[-1] | sums | {"ranks": "real"}


def compare_on_ranks(methods: Sequence[str], **arguments: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Fine-tune under each method on real and on virtual ranks.

    Returns:
        Rows by method: `score_difference` (%), `loss_difference` (a share of the virtual ranks' loss) and
        `bytes_difference`, real less virtual; and all cells.
    """
    return training.compare_on_ranks(
        [(name, {**arguments, "method": name}) for name in methods],
        on_real=fine_tune_on_ranks,
        on_virtual=fine_tune,
        more=lambda real, virtual: [("bytes_difference", sum(real[name] - virtual[name] for name in BYTES), "B")],
        key="method",
    )


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
    """Train a masked language model on pieces of WikiText-2 under compression, then fine-tune it on each task without.

    Returns:
        Plain values: `pretraining_loss` at the end, and `cells`, what `fine_tune` returns for each task, each with
        the method of the masked language model as its `method`.
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
    later = [_setting_of(cell) for cell in cells]
    trained, loss, source = _pretrained(setting, load_encoder(encoder, or_stand_in=True))
    cells = [_train_and_score(each, trained, _on_virtual_ranks) for each in later]
    cells = [cell | {"method": method, "data": [*cell["data"], source.as_record()]} for cell in cells]
    return {"method": method, "seed": seed, "pretraining_loss": loss, "cells": cells}


def masked_blocks(lines: Sequence[str], encoder: PretrainedEncoder, setting: PreTraining) -> Examples:
    """Cut text into pieces between [CLS] and [SEP] and mask some words; labels ask for these alone."""
    tokenizer, inner = encoder.tokenizer, setting.max_tokens - 2
    tokens = _first_tokens(lines, encoder, setting.num_blocks * inner)
    num_blocks = min(setting.num_blocks, len(tokens) // inner)
    if num_blocks < setting.recipe.batch:
        rule = f"it must leave a batch of {setting.recipe.batch} pieces of the text, which gives {num_blocks}"
        raise ValueError(f"max_tokens is {setting.max_tokens}; {rule}")
    blocks_BS = torch.tensor(tokens[: num_blocks * inner]).view(num_blocks, inner)
    ends = (torch.full((num_blocks, 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    before, after = ends
    ids_BS, labels_BS = _masked(torch.cat((before, blocks_BS, after), 1), encoder, setting.recipe.seed)
    return Examples(ids=list(ids_BS), types=list(torch.zeros_like(ids_BS)), labels=labels_BS)


def _setting_of(arguments: Mapping[str, Any]) -> FineTuning:
    bound = inspect.signature(fine_tune).bind(**arguments)
    bound.apply_defaults()
    given = bound.arguments
    trained = {name: given.pop(name) for name in ("epochs", "batch", "learning_rate", "precision", "seed", "device")}
    return FineTuning(recipe=Recipe(**trained, drop_last=given["fixed_length"]), **given)


def _on_virtual_ranks(setting: FineTuning, encoder: PretrainedEncoder) -> tuple[Trainable, Traffic]:
    group = VirtualTensorGroup(setting.tp)
    return on_virtual_ranks(setting, encoder, classifier(setting.glue_task), group), group.traffic


def _on_real_ranks(setting: FineTuning, encoder: PretrainedEncoder) -> tuple[Trainable, Traffic]:
    mesh = open_mesh(tensor=setting.tp, pipeline=setting.pp, device=setting.recipe.device)
    return on_real_ranks(setting, encoder, classifier(setting.glue_task), mesh), mesh.tensor_group.traffic


def _run(setting: FineTuning, build: Build) -> dict[str, Any]:
    return _train_and_score(setting, load_encoder(setting.encoder, or_stand_in=True), build)


def _train_and_score(setting: FineTuning, encoder: PretrainedEncoder, build: Build) -> dict[str, Any]:
    """Build, train and score; there are no scores except in the last stage."""
    start = time.perf_counter()
    layers = setting.compressed_layers(encoder.config["num_hidden_layers"])
    learning, scored = (_load(setting, split) for split in ("train", setting.glue_task.validation_split))
    examples, held_out = (_encoded(data, setting, encoder) for data in (learning, scored))
    pipeline, traffic = build(setting, encoder)
    traffic.clear()
    ledger = Ledger(traffic, layers, setting.compressed_boundaries(encoder.config["num_hidden_layers"]))
    run = train(pipeline, examples, setting.recipe, on_step=ledger.close_step)
    outputs = predict(pipeline, held_out, setting.recipe)
    sources = [source.as_record() for source in (learning.source, scored.source, encoder.source)]
    return {
        **_scores(setting, outputs, scored),
        **_described(setting, layers, run),
        **ledger.per_step(),
        "num_train": len(learning),
        "num_validation": len(scored),
        "longest": max(examples.longest, held_out.longest),
        "seconds": time.perf_counter() - start,
        "data": sources,
    }


def _load(setting: FineTuning, split: str) -> Dataset:
    limit = setting.limit if split == "train" else None
    return glue.load(setting.task, split, limit=limit, seed=setting.recipe.seed)


def _encoded(data: Dataset, setting: FineTuning, encoder: PretrainedEncoder) -> Examples:
    """Turn text into token ids, and labels into what the loss takes."""
    found = encoder.tokenizer(*data.texts, truncation=True, max_length=setting.max_tokens)
    ids, types = ([torch.tensor(row) for row in found[name]] for name in ("input_ids", "token_type_ids"))
    labels = torch.tensor(data.labels, dtype=torch.float32 if setting.glue_task.is_regression else torch.int64)
    longest = max(map(len, ids))
    return Examples(ids=ids, types=types, labels=labels, padded_to=longest if setting.fixed_length else 0)


def _scores(setting: FineTuning, outputs: Tensor | None, scored: Dataset) -> dict[str, Any]:
    if outputs is None:
        return {}
    task = setting.glue_task
    predictions = outputs.squeeze(-1) if task.is_regression else outputs.argmax(-1)
    scores = glue_scores(task, predictions.tolist(), scored.labels)
    metric = task.metrics[0]
    return {"metric": metric, "score": scores[metric], "scores": scores, "chance": chance_score(task, scored.labels)}


def _described(setting: FineTuning, layers: Sequence[int], run: TrainingRun) -> dict[str, Any]:
    """Describe the training, its loss at the end and its time."""
    recipe = setting.recipe
    return {
        "task": setting.task,
        "method": setting.method,
        "seed": recipe.seed,
        "layers": list(layers),
        "precision": recipe.precision,
        "train_loss": _loss_at_end(run),
        "num_steps": run.num_steps,
        "training_s": run.seconds,
        "examples_per_s": run.num_examples / run.seconds,
    }


def _loss_at_end(run: TrainingRun) -> float | None:
    return sum(run.losses_at_end) / len(run.losses_at_end) if run.losses_at_end else None


def _pretrained(setting: PreTraining, encoder: PretrainedEncoder) -> tuple[PretrainedEncoder, float, DataSource]:
    """Train the masked language model: the encoder with new weights, the loss at the end, the source of the text."""
    text = wikitext2.load("train")
    examples = masked_blocks(text.columns["text"], encoder, setting)
    pipeline = on_virtual_ranks(setting, encoder, masked_words(), VirtualTensorGroup(setting.tp))
    run = train(pipeline, examples, setting.recipe)
    weights = {name.removeprefix("bert."): value for name, value in encoder.state_dict.items()}
    for part in pipeline.parts:
        weights |= {name: value.cpu() for name, value in to_hugging_face(part).items()}
    return replace(encoder, state_dict=weights), _loss_at_end(run), text.source


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
