"""Iterations under stragglers, measured on real ranks.

- `study.measure_variants`: variants in turn on real ranks, rows with intervals, timelines
- `size.Size`: the model and its batch; `rank.record_rounds`: what a rank does; `rows.rows_of`: what rows say
- `breakdown.break_down`: an iteration's parts, waiting apart from transferring

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V.
Simplified, left out: see each module.
"""

from .breakdown import Breakdown, break_down, told_apart
from .size import Size
from .study import Measured, measure_variants

__all__ = ["Breakdown", "Measured", "Size", "break_down", "measure_variants", "told_apart"]
