"""The fine-tunings of a table, with every argument written out, so that equal ones are run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from workbench.datasets import glue
from workbench.models.pretrained import DEFAULT_ENCODER, load_encoder

from ..method import method

__all__ = ["ENCODER_RECIPES", "RECIPES", "cells_by_layers", "fine_tuning_cells", "longest_sequence"]

# The paper states none. Ours are chosen on uncompressed runs of one seed of MiniLM, scored on the validation split: at
# 2e-4 STS-B, at 4e-4 MRPC stayed at chance. Two epochs of STS-B are too few under compression; tables 5, 15 take six.
_RECIPE = MappingProxyType({"epochs": 2, "learning_rate": 1e-4, "limit": None})
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "sst2": _RECIPE | {"epochs": 1, "limit": 8_000},
        "mrpc": _RECIPE,
        "stsb": _RECIPE,
        "cola": _RECIPE,
        "rte": _RECIPE | {"epochs": 3},
        "qnli": _RECIPE,
        "qqp": _RECIPE | {"epochs": 1, "limit": 8_000},
        "mnli": _RECIPE | {"epochs": 1, "limit": 8_000},
    }
)
"""Task -> epochs, peak learning rate, and how many training examples are drawn (None: all)."""

# Devlin et al., BERT, appendix A.3: rates of 2e-5 to 5e-5, 2 to 4 epochs.
ENCODER_RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"bert-large-uncased": MappingProxyType({"epochs": 3, "learning_rate": 2e-5, "limit": None})}
)
"""Encoder -> its part of the recipe of every task."""


def fine_tuning_cells(
    tasks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    max_tokens: int,
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
    wins; `epochs` holds tasks whose epochs are not the recipe's; `more` are further arguments, such as `layers`.

    Returns:
        Cells, all methods of a seed before the next seed. A cell on the CPU does not name its device.
    """
    more |= {} if device == "cpu" else {"device": device}
    for name in methods:
        method(name)
    if unknown := [task for task in tasks if task not in RECIPES]:
        raise ValueError(f"tasks has {unknown[0]!r}; it must be among {', '.join(RECIPES)}")
    for task, times in epochs.items():
        if task not in tasks or times < 1:
            raise ValueError(f"epochs has {task!r}: {times}; it must be of {', '.join(tasks)} and at least 1")
    recipes = {}
    for task in tasks:
        recipe = {**RECIPES[task], **ENCODER_RECIPES.get(encoder, {})}
        recipe["epochs"] = epochs.get(task, recipe["epochs"])
        if limit is not None:
            recipe["limit"] = min(limit, recipe["limit"] or limit)
        recipe["max_tokens"] = min(max_tokens, longest_sequence(task, encoder))
        recipes[task] = recipe | {"task": task, "batch": batch, "precision": precision, "encoder": encoder, **more}
    return [recipes[task] | {"method": method, "seed": seed} for seed in seeds for task in tasks for method in methods]


def cells_by_layers(
    tasks: Sequence[str], method: str, layer_sets: Sequence[Sequence[int]], seeds: Sequence[int], **options: Any
) -> list[dict[str, Any]]:
    """List the arguments of `fine_tune` for every set of compressed layers.

    An empty set is the uncompressed encoder; the last half of the layers is written as in the tables, so that it is run
    once.
    """
    num_layers = load_encoder(options.get("encoder", DEFAULT_ENCODER), or_stand_in=True).config["num_hidden_layers"]
    last_half = list(range(num_layers // 2, num_layers))
    cells = []
    for layers in layer_sets:
        more = {} if list(layers) in ([], last_half) else {"layers": list(layers)}
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
