"""Seconds of an epoch under stragglers, with and without resizing and migration; nothing here imports torch."""

from __future__ import annotations

import importlib

_NAMES = {
    ".iteration": "CALIBRATION CHOSEN_ON MODELS VIT_1B VIT_3B calibrate extraction_s iteration_parts "
    "migration_epoch_time_s migration_time paper_machine published_epochs_s table_1_cell turns",
    ".solutions": "ENOUGH MARGIN MapPoint PlannedEpoch division_epochs epoch_of_plan epoch_time_s model_costs "
    "model_times planned_epoch winner_map winner_of",
    "..method.plan": "Scheme Solution",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
