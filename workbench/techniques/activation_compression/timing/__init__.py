"""Iteration times of compressed training, measured on real ranks over shaped links."""

from .fitting import FitStudy, Fitted, break_even_rows, fit_machine, measure_fit, prediction_rows, settings_of
from .links import (
    SMALL_BERT,
    Calibration,
    ShareOf,
    TableTimes,
    beside_largest,
    carried_over_share,
    measure_table,
    ranks_at_share,
)
from .study import PRELOAD, Measured, measure_iterations, measure_on, trials
from .variants import Timed, Variant, timed

__all__ = [
    "PRELOAD",
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
    "break_even_rows",
    "carried_over_share",
    "fit_machine",
    "measure_fit",
    "measure_iterations",
    "measure_on",
    "measure_table",
    "prediction_rows",
    "ranks_at_share",
    "settings_of",
    "timed",
    "trials",
]
