"""Iteration times on real ranks over shaped links, and scores after fine-tuning on GLUE with encoded messages."""

from __future__ import annotations

import importlib

_HOMES = {
    "cells": ("RECIPES", "cells_by_layers", "fine_tuning_cells", "longest_sequence"),
    "fine_tuned_model": ("FineTuning", "Ledger", "PreTraining", "classifier", "on_real_ranks", "on_virtual_ranks"),
    "fine_tuning": ("compare_on_ranks", "fine_tune", "fine_tune_on_ranks", "masked_blocks", "pretrain_then_fine_tune"),
    "fitting": (
        "FitStudy",
        "Fitted",
        "break_even_rows",
        "fit_machine",
        "measure_fit",
        "prediction_rows",
        "settings_of",
    ),
    "iterations": ("PRELOAD", "Measured", "measure_iterations", "measure_on", "trials"),
    "links": (
        "SMALL_BERT",
        "Calibration",
        "ShareOf",
        "TableTimes",
        "beside_largest",
        "carried_over_share",
        "measure_table",
        "ranks_at_share",
    ),
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
    "variants": ("Timed", "Variant", "timed"),
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str):
    # Lazy, so that a finished training depends neither on how it is drawn nor on the timing study.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
