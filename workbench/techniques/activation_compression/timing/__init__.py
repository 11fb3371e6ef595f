"""Iteration times of compressed training, measured on real ranks over shaped links.

- `tables.measure_table`: all settings of a table; `study.measure_iterations`: one link, one batch
- `links.link_for_share`: a link on which communication takes the share that it takes in the paper
- `breakdown.break_down`: an iteration's parts from its ranks' timelines, waiting apart from transferring
- `fitting.fit_machine`: this machine's rates, for the cost model; `predicting.measure_fit`: how far they carry
- `variants.timed`: a method, or a variant of it such as "T1 int32"

Source: "Does compressing activations help model parallel training?", sections 4.2, 4.4 and 4.6.
Simplified, left out: see each module.
"""

from .breakdown import Breakdown, break_down
from .drawing import SMALL_BERT, beside_published, best_learned, stacked_parts, title
from .fitting import Fitted, fit_machine, settings_of
from .links import Calibration, ShareOf, link_for_share
from .predicting import FitStudy, measure_fit
from .study import Measured, measure_iterations
from .tables import TableTimes, measure_table
from .variants import Timed, Variant, timed

__all__ = [
    "SMALL_BERT", "Breakdown", "Calibration", "FitStudy", "Fitted", "Measured", "ShareOf", "TableTimes", "Timed", "Variant",
    "beside_published", "best_learned", "break_down", "fit_machine", "link_for_share", "measure_fit", "measure_iterations",
    "measure_table", "settings_of", "stacked_parts", "timed", "title",
]  # fmt: skip
