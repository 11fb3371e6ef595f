"""What the paper's figures would show on its own machine: rows for records and figures, from the model of `cost`.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V.
Simplified, left out: see each module.
"""

from .certificates import case_rows, draw_case, search_rows, summary_rows
from .epochs import ONE_RATIO, SOLUTIONS, simulate_divisions, simulate_ratios, simulate_skewness
from .migrating import calibration_cells, simulate_migration
from .text import efficiency_rows, ratio_needed, simulate_text
from .winning import map_rows, simulate_map

__all__ = [
    "ONE_RATIO",
    "SOLUTIONS",
    "calibration_cells",
    "case_rows",
    "draw_case",
    "efficiency_rows",
    "map_rows",
    "ratio_needed",
    "search_rows",
    "simulate_divisions",
    "simulate_map",
    "simulate_migration",
    "simulate_ratios",
    "simulate_skewness",
    "simulate_text",
    "summary_rows",
]
