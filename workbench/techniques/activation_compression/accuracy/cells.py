"""Which fine-tunings a table needs, each with every argument said, so that equal ones are run once.

Source: "Does compressing activations help model parallel training?", section 4.1 (batch 32 or 8, at most 512 or 128
tokens). The paper states no learning rates and epochs; `RECIPES` are ours, chosen on uncompressed runs of one seed of
MiniLM, scored on the validation split: at 2e-4 STS-B, at 4e-4 MRPC stayed at chance. Two epochs of batches of 32 are
too few for STS-B under compression (`deciding.ENOUGH_STEPS`): tables 5 and 15 take six. `ENCODER_RECIPES` are from Devlin
et al., BERT, appendix A.3: rates of 2e-5 to 5e-5, 2 to 4 epochs; all examples.
Simplified: one recipe a task and encoder, whatever the method and the batch.
Left out: a search for the best recipe of each method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from workbench.datasets import glue
from workbench.models.pretrained import DEFAULT_ENCODER, load_encoder

from ..method import method

__all__ = ["ENCODER_RECIPES", "RECIPES", "cells_by_layers", "fine_tuning_cells", "longest_sequence"]

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

ENCODER_RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"bert-large-uncased": MappingProxyType({"epochs": 3, "learning_rate": 2e-5, "limit": None})}
)
"""Encoder -> what takes the place of a task's recipe, whatever the task."""


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

    Args:
        tasks: GLUE tasks.
        methods: rows of table 1.
        seeds: one run each.
        max_tokens: the table's; lowered to the longest sequence of the task's data, which changes nothing.
        batch: examples of a step.
        precision: "fp32" or "bf16".
        limit: fewer training examples than the recipe draws; None leaves the recipe's.
        epochs: task -> times that every example is seen, where not as often as in the recipe.
        encoder: a pretrained encoder's name, or "stand-in".
        device: of model and batches; a cell on the CPU does not say it.
        more: further arguments, such as `layers`.

    Returns:
        Cells, all methods of a seed before the next seed, so that what is there early is complete.

    Raises:
        ValueError: for a task without a recipe, an unknown method, or epochs below 1 or of a task that is not asked for.
    """
    more |= {} if device == "cpu" else {"device": device}
    for name in methods:
        method(name)
    if unknown := [task for task in tasks if task not in RECIPES]:
        raise ValueError(f"tasks has {unknown[0]!r}, must be among {', '.join(RECIPES)}")
    for task, times in epochs.items():
        if task not in tasks or times < 1:
            raise ValueError(f"epochs has {task!r}: {times}; must be of {', '.join(tasks)} and at least 1")
    return [
        {
            **_arguments(task, limit, epochs, encoder),
            "task": task,
            "method": method,
            "seed": seed,
            "batch": batch,
            "max_tokens": min(max_tokens, longest_sequence(task, encoder)),
            "precision": precision,
            "encoder": encoder,
            **more,
        }
        for seed in seeds
        for task in tasks
        for method in methods
    ]


def cells_by_layers(
    tasks: Sequence[str], method: str, layer_sets: Sequence[Sequence[int]], seeds: Sequence[int], **options: Any
) -> list[dict[str, Any]]:
    """List the arguments of `fine_tune` for every set of compressed layers.

    Args:
        tasks: GLUE tasks.
        method: a row of table 1.
        layer_sets: indices of the compressed layers; an empty set is the uncompressed encoder.
        seeds: one run each.
        options: further ones of `fine_tuning_cells`.

    Returns:
        Cells, set by set; the last half of the layers is said as in the tables, so that it is run once.
    """
    num_layers = load_encoder(options.get("encoder", DEFAULT_ENCODER), or_stand_in=True).config["num_hidden_layers"]
    last_half = list(range(num_layers // 2, num_layers))
    cells = []
    for layers in layer_sets:
        more = {} if list(layers) in ([], last_half) else {"layers": list(layers)}
        cells += fine_tuning_cells(tasks, [method if layers else "w/o"], seeds, **more, **options)
    return cells


def _arguments(task: str, limit: int | None, epochs: Mapping[str, int], encoder: str) -> dict[str, Any]:
    recipe = {**RECIPES[task], **ENCODER_RECIPES.get(encoder, {})}
    recipe |= {"epochs": epochs.get(task, recipe["epochs"])}
    return recipe if limit is None else recipe | {"limit": min(limit, recipe["limit"] or limit)}


@cache
def longest_sequence(task: str, encoder: str = DEFAULT_ENCODER) -> int:
    """Count the tokens of the longest sequence of a task, cut to what the encoder reads.

    Args:
        task: a GLUE task; both its splits are looked at.
        encoder: whose tokenizer reads it.
    """
    found = load_encoder(encoder, or_stand_in=True)
    splits = (glue.load(task, split) for split in glue.TASKS[task].published_rows)
    most = found.config["max_position_embeddings"]
    encoded = (found.tokenizer(*data.texts, truncation=True, max_length=most)["input_ids"] for data in splits)
    return max(len(row) for rows in encoded for row in rows)
