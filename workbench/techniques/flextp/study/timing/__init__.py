"""Iterations under stragglers, measured on real ranks.

- `study.measure_variants`: variants in turn on real ranks, rows with intervals, timelines
- `compared.variants_of`, `keys_of`: variants from a catalogue's plain values; `size.Size`: the model and its batch
- `breakdown.break_down`: an iteration's parts, waiting apart from transferring; `rows`: what rows say
- `axis.along_axis`: places of a figure's axis beside each other, round by round
- `machinery.measure_machinery`: what balancing costs where nobody straggles; `map_check`: the model beside measurements

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V.
Simplified, left out: see each module.
"""

from .axis import along_axis
from .breakdown import Breakdown, break_down, told_apart
from .compared import keys_of, traces_of, variants_of
from .machinery import measure_machinery
from .map_check import map_points, predicted_rows
from .size import Size
from .study import Measured, measure_variants

__all__ = [
    "Breakdown",
    "Measured",
    "Size",
    "along_axis",
    "break_down",
    "keys_of",
    "map_points",
    "measure_machinery",
    "measure_variants",
    "predicted_rows",
    "told_apart",
    "traces_of",
    "variants_of",
]
