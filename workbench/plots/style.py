"""The style sheet of all figures, and the colours of kinds and series.

The palette is that of Okabe and Ito (2008), which colour-blind readers can tell apart, with a dark brown for its
yellow. Kinds of action also differ by hatching and series by markers, so that no meaning hangs on colour alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import ArrayLike

from workbench.timeline import Kind

__all__ = [
    "KIND_COLOR",
    "KIND_HATCH",
    "LINE_STYLES",
    "MARKERS",
    "OURS",
    "PALETTE",
    "PUBLISHED",
    "STYLE",
    "below",
    "beside",
    "figure",
    "log_scale",
    "mark_published",
    "new_axes",
    "published_line",
    "styled",
]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
BROWN = "#6E3B00"
GREY, PALE, INK = "#999999", "#DDDDDD", "#222222"

PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, BROWN)  # colours of series, in order
MARKERS = "osD^vPX*"  # markers of series, in order
LINE_STYLES = ("-", "--", "-.", ":")  # line style of the first eight series, of the next eight, ...
PUBLISHED, OURS = GREY, BLUE  # a paper's value and ours, where a figure shows both

KIND_COLOR = MappingProxyType(
    {
        Kind.COMPUTE: SKY,
        Kind.FORWARD: SKY,
        Kind.BACKWARD: PURPLE,
        Kind.ENCODE: YELLOW,
        Kind.COMMUNICATE: VERMILION,
        Kind.DECODE: GREEN,
        Kind.WAIT: PALE,
        Kind.OTHER: GREY,
    }
)

KIND_HATCH = MappingProxyType(
    dict.fromkeys(Kind, "") | {Kind.COMMUNICATE: "///", Kind.ENCODE: "...", Kind.DECODE: "xx", Kind.BACKWARD: "\\\\"}
)

STYLE = MappingProxyType(
    {
        "figure.figsize": (7.2, 3.6),
        "figure.dpi": 100,
        "figure.constrained_layout.use": True,
        "savefig.dpi": 160,
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelcolor": INK,
        "axes.edgecolor": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.prop_cycle": cycler(color=PALETTE),
        "grid.color": PALE,
        "grid.linewidth": 0.6,
        "hatch.linewidth": 0.5,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


@contextmanager
def styled() -> Iterator[None]:
    """Use the style for all drawing in the body only; also a decorator."""
    # Only these settings are put back: a notebook's backend, which is loaded at the first figure, turns interactive
    # drawing on, and `matplotlib.rc_context` would undo that.
    before = {name: plt.rcParams[name] for name in STYLE}
    plt.rcParams.update(STYLE)
    try:
        yield
    finally:
        plt.rcParams.update(before)


def figure(num_rows: int = 1, num_columns: int = 1, **options) -> tuple[Figure, Axes]:
    """Start a figure in the style, with one Axes or an array of them; takes what `matplotlib.pyplot.subplots` takes."""
    with styled():
        return plt.subplots(num_rows, num_columns, **options)


def new_axes(ax: Axes | None) -> Axes:
    """Return the axes given, or those of a new figure in the style."""
    return figure()[1] if ax is None else ax


def beside(ax: Axes, *, title: str | None = None) -> None:
    """Put the legend to the right of the axes, where it hides nothing."""
    ax.legend(title=title, loc="upper left", bbox_to_anchor=(1, 1))


def below(drawn: Figure, *, num_columns: int = 3) -> None:
    """Put one legend of all series under the figure in place of those of its axes."""
    handles = {}
    for ax in drawn.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        if ax.get_legend():
            ax.get_legend().remove()
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=num_columns)


def log_scale(ax: Axes, *, x: bool = False, y: bool = False) -> None:
    """Make axes logarithmic, with plain numbers at their ticks."""
    for axis, set_scale, is_log in ((ax.xaxis, ax.set_xscale, x), (ax.yaxis, ax.set_yscale, y)):
        if is_log:
            set_scale("log")
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(LogFormatter())


def published_line(ax: Axes, value: float, label: str, *, along_x: bool = False) -> None:
    """Draw a paper's value as a dashed line, across the heights or along the x axis."""
    (ax.axvline if along_x else ax.axhline)(value, color=PUBLISHED, linestyle="--", label=label)


def mark_published(ax: Axes, x: ArrayLike, y: ArrayLike, label: str) -> None:
    """Mark a paper's points with black crosses."""
    ax.plot(x, y, "x", color=BLACK, markersize=9, clip_on=False, in_layout=False, label=label)
