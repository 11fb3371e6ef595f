"""The one style sheet of every figure, and the colours of the words we use.

Source: the palette of Okabe and Ito (2008), told apart by colour-blind readers and in
print; kinds of action also differ by hatching, so that no meaning hangs on colour alone.
Simplified: one size of text for notebooks, reports and phones.
Left out: dark themes; figures keep their white ground there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.timeline import Kind

__all__ = [
    "KIND_COLOR",
    "KIND_HATCH",
    "OURS",
    "PALETTE",
    "PUBLISHED",
    "STYLE",
    "beside",
    "figure",
    "new_axes",
    "styled",
]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE, INK = "#999999", "#DDDDDD", "#222222"

#: The colours of series, in order.
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)

#: What a paper says beside what we found, in every figure of the two.
PUBLISHED, OURS = GREY, BLUE

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
    """Give the style to everything drawn in the body, and to nothing outside it; also a decorator.

    Only the settings of the style are put back: a notebook's backend is loaded at the first
    figure and turns interactive drawing on, which `matplotlib.rc_context` would undo.
    """
    before = {name: plt.rcParams[name] for name in STYLE}
    plt.rcParams.update(STYLE)
    try:
        yield
    finally:
        plt.rcParams.update(before)


def figure(num_rows: int = 1, num_columns: int = 1, **options) -> tuple[Figure, Axes]:
    """Start a figure in the style.

    Args:
        num_rows: rows of axes.
        num_columns: columns of axes.
        options: what `matplotlib.pyplot.subplots` takes, such as `figsize` in inches.

    Returns:
        The figure, and its axes: one, or an array of them.
    """
    with styled():
        return plt.subplots(num_rows, num_columns, **options)


def beside(ax: Axes, *, title: str | None = None) -> None:
    """Put the legend to the right of the axes, where it hides nothing.

    Args:
        ax: what it explains.
        title: of the legend.
    """
    ax.legend(title=title, loc="upper left", bbox_to_anchor=(1, 1))


def new_axes(ax: Axes | None) -> Axes:
    """Return the axes given, or those of a new figure in the style."""
    return figure()[1] if ax is None else ax
