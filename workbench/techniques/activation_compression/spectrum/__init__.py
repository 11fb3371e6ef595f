"""How the singular values of gradients and activations are spread: is there a low rank to compress to?

What: `curves` turns singular values into the figure's curve and its numbers, `measure` takes the matrices from a
pretrained encoder on tensor-parallel ranks.
Source: "Does compressing activations help model parallel training?", figure 2 and section 2.2.
Simplified: see the two modules.
Left out: spectra later in training.
"""

from workbench.techniques.activation_compression.spectrum.curves import (
    Spectrum,
    area_above_diagonal,
    cumulative_share,
    dimension_share,
    mean_curves,
    singular_values,
    summary_rows,
)
from workbench.techniques.activation_compression.spectrum.measure import Measurement, Setting, measure, measure_on_ranks

__all__ = [
    "Measurement",
    "Setting",
    "Spectrum",
    "area_above_diagonal",
    "cumulative_share",
    "dimension_share",
    "mean_curves",
    "measure",
    "measure_on_ranks",
    "singular_values",
    "summary_rows",
]
