"""Does compression keep accuracy? Fine-tuning a pretrained encoder on GLUE with encoded messages.

`fine_tune` is one cell (task, method, seed) of tables 5, 15 and 16, `fine_tuning_cells` lists the cells of a table,
`score_rows` turns their results into rows of a record.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "fine_tuning": ("compare_on_ranks", "fine_tune", "fine_tune_on_ranks", "masked_blocks", "pretrain_then_fine_tune"),
    "cells": ("RECIPES", "cells_by_layers", "fine_tuning_cells", "longest_sequence"),
    "model": ("FineTuning", "Ledger", "PreTraining", "classifier", "on_real_ranks", "on_virtual_ranks"),
    "scores": (
        "QUANTITIES_PER_BYTE",
        "at_chance",
        "feedback_rows",
        "finding_per_byte",
        "layer_rows",
        "mean_rows",
        "precision_rows",
        "pretraining_rows",
        "score_rows",
        "shorter_rows",
        "with_layers",
    ),
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str):
    # Lazy, so that a finished cell does not depend on how it is drawn.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
