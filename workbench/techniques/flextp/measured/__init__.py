"""Epochs under stragglers, measured on real ranks, and rows of them."""

from .compared import CONTROL, blind_reason, map_points, predicted_rows, rows_as_timed, variants_as_timed
from .rows import Notes, along_axis, rows_of
from .timing import BALANCED, Measured, Setting, Size, Training, measure_machinery, measure_variants, trials
from .variant import Variant, keys_of, traces_of, variants_of

__all__ = [
    "BALANCED",
    "CONTROL",
    "Measured",
    "Notes",
    "Setting",
    "Size",
    "Training",
    "Variant",
    "along_axis",
    "blind_reason",
    "keys_of",
    "map_points",
    "measure_machinery",
    "measure_variants",
    "predicted_rows",
    "rows_as_timed",
    "rows_of",
    "traces_of",
    "trials",
    "variants_as_timed",
    "variants_of",
]
