"""Iteration times on real ranks over shaped links, and scores after fine-tuning on GLUE with encoded messages."""

from __future__ import annotations

import importlib

_NAMES_OF = {
    "fine_tuned_model": "FineTuning Ledger PreTraining on_real_ranks on_virtual_ranks",
    "fine_tuning": "RECIPES cells_by_layers compare_on_ranks fine_tune fine_tune_on_ranks fine_tuning_cells "
    "longest_sequence masked_blocks pretrain_then_fine_tune",
    "fitting": "FitStudy Fitted break_even_rows fit_line fit_machine measure_fit prediction_rows r_squared "
    "settings_of small_fit_row",
    "iterations": "PRELOAD SMALL_BERT Calibration Measured ShareOf TableTimes Trial carried_over_share "
    "largest_speedup_rows measure_on measure_table next_rate places_of ranks_at_share share_row trials turns_of",
    "scores": "QUANTITIES_PER_BYTE at_chance feedback_rows layer_rows mean_rows precision_rows "
    "pretraining_rows score_rows shorter_rows with_layers",
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names.split()}

__all__ = list(_HOMES)


def __getattr__(name: str):
    # Lazy, so that a finished training depends neither on how it is drawn nor on the timing study.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
