"""Iteration times of compressed training, measured on real ranks over shaped links.

`study` times methods, `links` calibrates links and measures tables, `fitting` fits this machine and predicts others.
"""

from .drawing import (
    KIND_OF_PART,
    SMALL_BERT,
    beside_largest,
    beside_published,
    label_axes,
    stacked_parts,
    with_intervals,
)
from .fitting import FitStudy, Fitted, break_even_rows, fit_machine, measure_fit, prediction_rows, settings_of
from .links import Calibration, ShareOf, TableTimes, carried_over_share, measure_table, ranks_at_share
from .study import Measured, measure_iterations, measure_on
from .variants import Timed, Variant, timed

__all__ = [
    "KIND_OF_PART",
    "SMALL_BERT",
    "Calibration",
    "FitStudy",
    "Fitted",
    "Measured",
    "ShareOf",
    "TableTimes",
    "Timed",
    "Variant",
    "beside_largest",
    "beside_published",
    "break_even_rows",
    "carried_over_share",
    "fit_machine",
    "label_axes",
    "measure_fit",
    "measure_iterations",
    "measure_on",
    "measure_table",
    "prediction_rows",
    "ranks_at_share",
    "settings_of",
    "stacked_parts",
    "timed",
    "with_intervals",
]
