"""Iteration times of compressed training, measured on real ranks over shaped links.

- `tables.measure_table`: all settings of a table; `study.measure_on`: one batch on open ranks
- `links.ranks_at_share`: ranks over a link on which communication takes the share that it takes in the paper
- `breakdown.break_down`: an iteration's parts from its ranks' timelines, waiting apart from transferring
- `fitting.fit_machine`: this machine's rates, for the cost model; `predicting.measure_fit`: how far they carry
- `variants.timed`: a method, or a variant of it such as "T1 int32"

Source: "Does compressing activations help model parallel training?", sections 4.2, 4.4 and 4.6.
Simplified, left out: see each module.
"""

from .breakdown import Breakdown, break_down
from .fitting import Fitted, fit_machine, settings_of
from .links import Calibration, ShareOf, carried_over_share, ranks_at_share
from .predicting import FitStudy, measure_fit
from .study import Measured, measure_iterations, measure_on
from .tables import SMALL_BERT, TableTimes, beside_largest, measure_table
from .variants import Timed, Variant, timed

__all__ = [
    "SMALL_BERT",
    "Breakdown",
    "Calibration",
    "FitStudy",
    "Fitted",
    "Measured",
    "ShareOf",
    "TableTimes",
    "Timed",
    "Variant",
    "beside_largest",
    "break_down",
    "carried_over_share",
    "fit_machine",
    "measure_fit",
    "measure_iterations",
    "measure_on",
    "measure_table",
    "ranks_at_share",
    "settings_of",
    "timed",
]
