"""Kinds of plot, one a file, in one style; each draws on the axes given, or on new ones, and returns them."""

from .bars import bars, comparison
from .curves import training_curves
from .gantt import gantt, gantts, kind_legend
from .heatmap import heatmap, matrix
from .iterations import measured_and_predicted, predicted_against_measured
from .lines import lines
from .sensitivity import draw_sensitivity
from .style import aside, below, beside, figure, mark_published, published_line, styled
from .tables import merged, rows_of, with_intervals
from .units import format_bytes, format_time

__all__ = ["aside", "bars", "below", "beside", "comparison", "draw_sensitivity", "figure", "format_bytes"]
__all__ += ["format_time", "gantt", "gantts", "heatmap", "kind_legend", "lines", "mark_published", "matrix"]
__all__ += ["measured_and_predicted", "merged", "predicted_against_measured", "published_line", "rows_of", "styled"]
__all__ += ["training_curves", "with_intervals"]
