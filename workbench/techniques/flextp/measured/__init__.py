"""Epochs and accuracy under stragglers, measured, and rows of them; `accuracy` is imported by itself."""

from .rows import Notes, Variant, along_axis, map_points, predicted_rows, rows_of, variants_of
from .timing import BALANCED, Measured, Setting, Size, Training, measure_machinery, measure_variants, trials

__all__ = ["BALANCED", "Measured", "Notes", "Setting", "Size", "Training", "Variant", "along_axis", "map_points"]
__all__ += ["measure_machinery", "measure_variants", "predicted_rows", "rows_of", "trials", "variants_of"]
