"""Does compression keep accuracy? Fine-tuning a pretrained encoder on GLUE with encoded messages.

What: `fine_tune` is one cell (task, method, seed) of tables 5, 15 and 16, `fine_tuning_cells` lists those of a table,
`score_rows` turns what they return into rows of a record.
Source: "Does compressing activations help model parallel training?", sections 4.3 to 4.5.
Simplified and left out: see the modules.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "fine_tuning": ("fine_tune", "fine_tune_on_ranks"),
    "pretraining": ("pretrain_then_fine_tune",),
    "on_ranks": ("compare_on_ranks",),
    "cells": ("RECIPES", "cells_by_layers", "fine_tuning_cells"),
    "scores": (
        "feedback_rows",
        "layer_rows",
        "mean_rows",
        "precision_rows",
        "score_rows",
        "shorter_rows",
        "sources",
        "told_by_layers",
    ),
    "finding": ("TOLD_PER_BYTE", "told_per_byte"),
    "deciding": ("chance_reasons", "methods_at_chance", "not_comparable"),
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str):
    # Lazy, so that a finished cell does not depend on how it is drawn.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
