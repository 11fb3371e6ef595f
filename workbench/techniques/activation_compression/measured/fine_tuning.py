"""Trainings of tables 5, 8, 15 and 16: fine-tuning under compression, and after a pre-training under compression.

Virtual and real ranks run the same loop on the same batches.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch

from workbench.datasets import Dataset, glue, wikitext2
from workbench.launch import run_on_ranks
from workbench.models.bert import BertForMaskedLM
from workbench.models.hugging_face import to_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import VirtualTensorGroup, generator_for
from workbench.parallel.pipeline import open_mesh
from workbench.rows.cells import named
from workbench.study import training
from workbench.study.batches import Examples
from workbench.study.loop import Recipe, Trainable, TrainingRun, predict, train
from workbench.study.metrics import chance_score, glue_scores

from ..method import method
from .fine_tuned_model import BYTES, FineTuning, Ledger, PreTraining, on_real_ranks, on_virtual_ranks

__all__ = ["RECIPES", "cells_by_layers", "compare_on_ranks", "fine_tune", "fine_tune_on_ranks", "fine_tuning_cells"]
__all__ += ["longest_sequence", "masked_blocks", "pretrain_then_fine_tune"]

PRELOAD = (__name__, "transformers.models.bert.tokenization_bert")  # imported once for all ranks
# Devlin et al., BERT, section 3.1: 15 % of the tokens are asked for, of these 80 % masked, 10 % random, 10 % kept.
MASKED_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.15, 0.1, 0.1  # the last two of the first
LINES_AT_A_TIME = 500
NOT_ASKED = -100  # the label that cross entropy leaves out


# The paper states no recipe. Ours come from uncompressed runs of one seed of MiniLM, scored on the validation split: at
# 2e-4 STS-B, at 4e-4 MRPC stayed at chance. Two epochs of STS-B are too few under compression; tables 5, 15 take six.
_TWO_EPOCHS = MappingProxyType({"epochs": 2, "learning_rate": 1e-4, "limit": None})
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    dict.fromkeys(("mrpc", "stsb", "cola"), _TWO_EPOCHS)
    | dict.fromkeys(("sst2", "qqp", "mnli"), _TWO_EPOCHS | {"epochs": 1, "limit": 8_000})
    | {"rte": _TWO_EPOCHS | {"epochs": 3}}
    | {"qnli": _TWO_EPOCHS}
)
"""Task -> epochs, peak learning rate, how many training examples are drawn (None: all)."""
# Few examples have more than 128 tokens: 3 to 5 in 1,000 of MNLI and QNLI, which are cut, and 2 in 10,000 of QQP.
SHARED_TOKENS = MappingProxyType({"mnli": 128, "qnli": 128, "qqp": 160})
"""Task -> tokens at most in tables 5 and 15 alike, with 512 and 128 tokens, so that they share their trainings."""
# Devlin et al., BERT, appendix A.3: rates of 2e-5 to 5e-5, 2 to 4 epochs.
_OF_LARGE = {"epochs": 3, "learning_rate": 2e-5, "limit": None}
ENCODER_RECIPES = MappingProxyType({"bert-large-uncased": _OF_LARGE})
"""Encoder -> its part of the recipe of every task."""


# --- cells: arguments of `fine_tune`, every one written out, so that equal ones are run once


def fine_tuning_cells(
    tasks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    max_tokens: int,
    seeds_of: Mapping[str, Sequence[int]] = MappingProxyType({}),
    batch: int = 32,
    precision: str = "bf16",
    limit: int | None = None,
    epochs: Mapping[str, int] = MappingProxyType({}),
    encoder: str = DEFAULT_ENCODER,
    device: str = "cpu",
    **more: Any,
) -> list[dict[str, Any]]:
    """List the arguments of `fine_tune` for every task, method and seed.

    `max_tokens` is lowered to the longest sequence of the task, which changes nothing; a `limit` below the recipe's
    wins; `seeds_of` and `epochs` hold tasks with other seeds, and with other epochs than the recipe's; `more` are
    further arguments, such as `layers`. All methods of a seed come before the next seed. A cell on the CPU does not
    name its device.
    """
    more |= {} if device == "cpu" else {"device": device}
    for name in methods:
        method(name)
    if unknown := [task for task in tasks if task not in RECIPES]:
        raise ValueError(f"tasks has {unknown[0]!r}; it must be among {', '.join(RECIPES)}")
    if unknown := [task for task in seeds_of if task not in tasks]:
        raise ValueError(f"seeds_of has {unknown[0]!r}; it must be of {', '.join(tasks)}")
    for task, times in epochs.items():
        if task not in tasks or times < 1:
            raise ValueError(f"epochs has {task!r}: {times}; it must be of {', '.join(tasks)} and at least 1")
    recipes = {}
    for task in tasks:
        recipe = {**RECIPES[task], **ENCODER_RECIPES.get(encoder, {})}
        recipe["epochs"] = epochs.get(task, recipe["epochs"])
        if limit is not None:
            recipe["limit"] = min(limit, recipe["limit"] or limit)
        is_shared = encoder not in ENCODER_RECIPES and max_tokens >= min(SHARED_TOKENS.values())
        most = SHARED_TOKENS.get(task, max_tokens) if is_shared else max_tokens
        recipe["max_tokens"] = min(most, longest_sequence(task, encoder))
        recipes[task] = recipe | {"task": task, "batch": batch, "precision": precision, "encoder": encoder, **more}
    return [
        recipes[task] | {"method": method, "seed": seed}
        for seed in dict.fromkeys([*seeds, *chain(*seeds_of.values())])
        for task in tasks
        for method in methods
        if seed in seeds_of.get(task, seeds)
    ]


def cells_by_layers(
    tasks: Sequence[str], method: str, layer_sets: Sequence[Sequence[int]], seeds: Sequence[int], **options: Any
) -> list[dict[str, Any]]:
    """List the arguments of `fine_tune` for every set of compressed layers; an empty set is the uncompressed encoder.

    The last half of the layers is written as in the tables, so that it is run once.
    """
    num_layers = load_encoder(options.get("encoder", DEFAULT_ENCODER), or_stand_in=True).config["num_hidden_layers"]
    last_half = list(range(num_layers // 2, num_layers))
    cells = []
    for layers in layer_sets:
        more: dict[str, Any] = {} if list(layers) in ([], last_half) else {"layers": list(layers)}
        cells += fine_tuning_cells(tasks, [method if layers else "w/o"], seeds, **more, **options)
    return cells


@cache
def longest_sequence(task: str, encoder: str = DEFAULT_ENCODER) -> int:
    """Return the tokens of the longest sequence of a task in both its splits, cut to what the encoder reads."""
    loaded = load_encoder(encoder, or_stand_in=True)
    splits = (glue.load(task, split) for split in glue.TASKS[task].published_rows)
    most = loaded.config["max_position_embeddings"]
    encoded = (loaded.tokenizer(*data.texts, truncation=True, max_length=most)["input_ids"] for data in splits)
    return max(len(row) for rows in encoded for row in rows)


# --- trainings


@named("activation_compression/fine_tune")
def fine_tune(
    *,
    task: str,
    method: str,
    seed: int,
    layers: Sequence[int] | None = None,
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
    """Fine-tune on virtual ranks in this process, and score on the validation split; equal seeds give equal bits.

    The arguments are the fields of `FineTuning` and of its `Recipe`; with fixed_length the rest of an epoch that fills
    no batch is left out. Returned are `score` in the task's leading `metric` and all `scores`, `chance` of a constant
    prediction, `train_loss` at the end, bytes a rank sends in a step, seconds, and where text and weights came from.
    """
    return _run(_setting_of(locals())) | {"ranks": "virtual"}


def fine_tune_on_ranks(*, timeout_s: float = 600, **arguments: Any) -> dict[str, Any]:
    """Fine-tune on tp times pp real ranks of this machine; bytes are those of the stages' first ranks together."""
    setting = _setting_of(arguments)
    run = partial(_run, setting, on_real=True)
    by_rank = run_on_ranks(run, setting.tp * setting.pp, timeout_s=timeout_s, preload=PRELOAD)
    of_stages = by_rank[:: setting.tp]
    sums = {name: sum(cell[name] for cell in of_stages) for name in BYTES}
    return of_stages[-1] | sums | {"ranks": "real"}


def compare_on_ranks(methods: Sequence[str], **arguments: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Fine-tune under each method on real and on virtual ranks.

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

    Returned are `pretraining_loss` at the end, and `cells`: what `fine_tune` returns for each task, with the method of
    the masked language model as `method`.
    """
    recipe = Recipe(
        epochs=epochs, batch=batch, learning_rate=learning_rate, precision=precision, seed=seed, device=device
    )
    place: dict[str, Any] = {"encoder": encoder, "tp": tp, "pp": pp}
    setting = PreTraining(method=method, recipe=recipe, num_blocks=num_blocks, max_tokens=max_tokens, **place)
    options: dict[str, Any] = {"max_tokens": 128, "precision": precision, "limit": limit, "device": device, **place}
    later = [_setting_of(cell) for cell in fine_tuning_cells(tasks, ["w/o"], [seed], **options)]

    loaded, text = load_encoder(encoder, or_stand_in=True), wikitext2.load("train")
    examples = masked_blocks(text.columns["text"], loaded, setting)
    pipeline = on_virtual_ranks(setting, loaded, VirtualTensorGroup(tp))
    run = train(pipeline, examples, recipe)
    weights = {name.removeprefix("bert."): value for name, value in loaded.state_dict.items()}
    for part in pipeline.module["parts"].children():
        assert isinstance(part, BertForMaskedLM)
        weights |= {name: value.cpu() for name, value in to_hugging_face(part).items()}
    trained = replace(loaded, state_dict=weights)
    cells = [_run(task, trained) for task in later]
    cells = [cell | {"method": method, "data": [*cell["data"], text.source.as_record()]} for cell in cells]
    return {"method": method, "seed": seed, "pretraining_loss": _loss_at_end(run), "cells": cells}


def masked_blocks(lines: Sequence[str], encoder: PretrainedEncoder, setting: PreTraining) -> Examples:
    """Cut text into pieces between [CLS] and [SEP] and mask some words; labels ask for these alone."""
    tokenizer, inner = encoder.tokenizer, setting.max_tokens - 2
    tokens: list[int] = []
    for start in range(0, len(lines), LINES_AT_A_TIME):
        part = list(lines[start : start + LINES_AT_A_TIME])
        for line in tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]:
            tokens += line
        if len(tokens) >= setting.num_blocks * inner:
            break
    num_blocks = min(setting.num_blocks, len(tokens) // inner)
    if num_blocks < setting.recipe.batch:
        rule = f"it must leave a batch of {setting.recipe.batch} pieces of the text, which gives {num_blocks}"
        raise ValueError(f"max_tokens is {setting.max_tokens}; {rule}")
    blocks_BS = torch.tensor(tokens[: num_blocks * inner]).view(num_blocks, inner)
    before, after = (torch.full((num_blocks, 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    ids_BS = torch.cat((before, blocks_BS, after), 1)

    draw = generator_for(setting.recipe.seed, "masked words")
    asked_BS = torch.rand(ids_BS.shape, generator=draw) < MASKED_SHARE
    asked_BS[:, 0] = asked_BS[:, -1] = False
    fate_BS = torch.rand(ids_BS.shape, generator=draw)
    random_BS = torch.randint(len(tokenizer), ids_BS.shape, generator=draw)
    shown_BS = torch.where(fate_BS < KEPT_SHARE, ids_BS, torch.full_like(ids_BS, tokenizer.mask_token_id))
    shown_BS = torch.where((fate_BS >= KEPT_SHARE) & (fate_BS < KEPT_SHARE + RANDOM_SHARE), random_BS, shown_BS)
    labels_BS = torch.where(asked_BS, ids_BS, torch.full_like(ids_BS, NOT_ASKED))
    ids = list(torch.where(asked_BS, shown_BS, ids_BS))
    return Examples(ids=ids, types=list(torch.zeros_like(ids_BS)), labels=labels_BS)


def _setting_of(arguments: Mapping[str, Any]) -> FineTuning:
    bound = inspect.signature(fine_tune).bind(**arguments)
    bound.apply_defaults()
    given = bound.arguments
    trained = {name: given.pop(name) for name in ("epochs", "batch", "learning_rate", "precision", "seed", "device")}
    return FineTuning(recipe=Recipe(**trained, drop_last=given["fixed_length"]), **given)


def _run(setting: FineTuning, encoder: PretrainedEncoder | None = None, *, on_real: bool = False) -> dict[str, Any]:
    """Build, train and score, on a real rank or on virtual ones; there are no scores except in the last stage."""
    start, recipe, task = time.perf_counter(), setting.recipe, setting.glue_task
    encoder = load_encoder(setting.encoder, or_stand_in=True) if encoder is None else encoder
    num_layers = encoder.config["num_hidden_layers"]
    layers = setting.compressed_layers(num_layers)
    learning = glue.load(setting.task, "train", limit=setting.limit, seed=recipe.seed)
    scored = glue.load(setting.task, task.validation_split, limit=None, seed=recipe.seed)
    examples, held_out = (_encoded(data, setting, encoder) for data in (learning, scored))
    pipeline: Trainable
    if on_real:
        mesh = open_mesh(tensor=setting.tp, pipeline=setting.pp, device=recipe.device)
        pipeline, traffic = on_real_ranks(setting, encoder, mesh), mesh.tensor_group.traffic
    else:
        group = VirtualTensorGroup(setting.tp)
        pipeline, traffic = on_virtual_ranks(setting, encoder, group), group.traffic
    traffic.clear()
    ledger = Ledger(traffic, layers, setting.compressed_boundaries(num_layers))
    run = train(pipeline, examples, recipe, on_step=ledger.close_step)
    outputs = predict(pipeline, held_out, recipe)
    scores = {}
    if outputs is not None:
        predictions = outputs.squeeze(-1) if task.is_regression else outputs.argmax(-1)
        by_metric, metric = glue_scores(task, predictions.tolist(), scored.labels), task.metrics[0]
        scores = {"metric": metric, "score": by_metric[metric], "scores": by_metric}
        scores["chance"] = chance_score(task, scored.labels)
    return {
        **scores,
        "task": setting.task,
        "method": setting.method,
        "seed": recipe.seed,
        "layers": list(layers),
        "train_loss": _loss_at_end(run),
        "num_steps": run.num_steps,
        **ledger.per_step(),
        "num_validation": len(scored),
        "seconds": time.perf_counter() - start,
        "data": [source.as_record() for source in (learning.source, scored.source, encoder.source)],
    }


def _encoded(data: Dataset, setting: FineTuning, encoder: PretrainedEncoder) -> Examples:
    """Turn text into token ids, and labels into what the loss takes."""
    tokens = encoder.tokenizer(*data.texts, truncation=True, max_length=setting.max_tokens)
    ids, types = ([torch.tensor(row) for row in tokens[name]] for name in ("input_ids", "token_type_ids"))
    labels = torch.tensor(data.labels, dtype=torch.float32 if setting.glue_task.is_regression else torch.int64)
    longest = max(map(len, ids))
    return Examples(ids=ids, types=types, labels=labels, padded_to=longest if setting.fixed_length else 0)


def _loss_at_end(run: TrainingRun) -> float | None:
    return sum(run.losses_at_end) / len(run.losses_at_end) if run.losses_at_end else None
