"""One file a kind of plot, one style sheet; every function returns the Axes it drew on."""

from .bars import bars
from .comparison import comparison
from .gantt import gantt
from .heatmap import heatmap
from .lines import lines
from .matrix import matrix
from .style import beside, figure, styled
from .units import format_bytes, format_time

__all__ = [
    "bars",
    "beside",
    "comparison",
    "figure",
    "format_bytes",
    "format_time",
    "gantt",
    "heatmap",
    "lines",
    "matrix",
    "styled",
]
