"""The style sheet of all figures, and the colours of kinds and series.

The palette is that of Okabe and Ito (2008), which colour-blind readers can tell apart, with a dark brown for its
yellow. A scheme has one colour in the whole project (`COLORS`), and no two series of a figure look alike (`looks_of`).
Kinds of action also differ by hatching and series by markers, so that no meaning hangs on colour alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import ArrayLike

from workbench.timeline import Kind

__all__ = ["COLORS", "KIND_COLOR", "KIND_HATCH", "OURS", "PALETTE", "PUBLISHED", "STYLE", "Look", "aside"]
__all__ += ["below", "beside", "color_of", "figure", "log_scale", "looks_of", "mark_published", "new_axes"]
__all__ += ["published_line", "styled"]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
BROWN, OLIVE = "#6E3B00", "#999933"
GREY, PALE, INK = "#999999", "#DDDDDD", "#222222"

PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, BROWN, OLIVE)  # of series without a colour of their own
MARKERS = "osD^vPX*p"  # of a figure's series, in order
LINE_STYLES = ("-", "--", "-.", ":")  # of series of one colour, in order
HATCHES = ("", "///", "...", "xx", "\\\\", "++")  # of bars of one colour, in order
PUBLISHED, OURS = GREY, BLUE  # a paper's value and ours, where a figure shows both

_SCHEMES = {
    BLUE: "ATP, ATP-OPT, Cupcake, Espresso, Gemini, SDPipe, SEMI, Zen",  # the papers' own
    BLACK: "AllReduce, All-Reduce+Pipe, ATP-1, Baseline, Dense, FP32, w/o",  # without any technique
    GREY: "DDP, DDP's buckets",
    BROWN: "ATP-16, FP16, ideal, torch, torchft, torchft DiLoCo",
    OLIVE: "Upper bound, Upper Bound",
    VERMILION: "AD-PSGD+Pipe, AGsparse, HighFreq, HiPress, Megatron-LM, MIG",
    GREEN: "ATP-2, Blocking, efsignsgd, GRACE, HetPipe, HiTopKComm, SparCML, ZERO-Rd",
    ORANGE: "ATP-4, BytePS-Compress, dgc, Evenly split, hivemind, Sparse PS, Strawman, ZERO-Pri",
    PURPLE: "ATP-8, Naive, OmniReduce, randomk, Single split, torchft LocalSGD, ZERO-PriDiffR",
    SKY: "2D/2.5D, async_save, Balanced Parallelism, Bucket fusion, onebit, Unpipelined, ZERO-PriDiffE",
}
COLORS = MappingProxyType({name: color for color, names in _SCHEMES.items() for name in names.split(", ")})

KIND_COLOR = MappingProxyType(
    {
        Kind.COMPUTE: SKY,
        Kind.FORWARD: SKY,
        Kind.BACKWARD: PURPLE,
        Kind.ENCODE: YELLOW,
        Kind.COMMUNICATE: VERMILION,
        Kind.DECODE: GREEN,
        Kind.WAIT: PALE,
        Kind.OTHER: OLIVE,
    }
)

KIND_HATCH = MappingProxyType(
    dict.fromkeys(Kind, "") | {Kind.COMMUNICATE: "///", Kind.ENCODE: "...", Kind.DECODE: "xx", Kind.BACKWARD: "\\\\"}
)

STYLE: Mapping[Any, Any] = MappingProxyType(
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


@dataclass(frozen=True, slots=True)
class Look:
    """How a series looks."""

    color: str
    marker: str
    line_style: str
    hatch: str  # of its bars


_LOOKS: WeakKeyDictionary[object, dict[str, Look]] = WeakKeyDictionary()  # of the series that a figure has so far


def color_of(name: object) -> str | None:
    """Return a scheme's own colour, which variants ("Zen, COO", "SEMI refined", "MIG(x)") share, or None."""
    words = str(name)
    schemes = [known for known in COLORS if words == known or words.startswith((f"{known} ", f"{known},", f"{known}("))]
    return COLORS[max(schemes, key=len)] if schemes else None


def looks_of(ax: Axes, names: Iterable[object]) -> list[Look]:
    """Return the look of each series: no two of a figure are alike, and a series looks the same on all its axes.

    Schemes have their own colours, others those that are left; series of one colour differ by line, marker and hatch.
    """
    series = list(map(str, names))
    known = _LOOKS.setdefault(ax.get_figure(root=True), {})
    new = [name for name in dict.fromkeys(series) if name not in known]
    for name in sorted(new, key=lambda name: (color_of(name) is None, name not in COLORS)):  # schemes, variants, others
        used = [look.color for look in known.values()]
        color = color_of(name) or min(PALETTE, key=used.count)
        number, variant = len(known), used.count(color)
        known[name] = Look(
            color=color,
            marker=MARKERS[number % len(MARKERS)],
            line_style=LINE_STYLES[variant % len(LINE_STYLES)],
            hatch=HATCHES[variant % len(HATCHES)],
        )
    return [known[name] for name in series]


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


def figure(num_rows: int = 1, num_columns: int = 1, **options: Any) -> tuple[Figure, Any]:
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
    _join_legends(drawn, loc="outside lower center", ncols=num_columns)


def aside(drawn: Figure) -> None:
    """Put one legend of all series to the right of the figure in place of those of its axes."""
    _join_legends(drawn, loc="outside right upper")


def _join_legends(drawn: Figure, **place: Any) -> None:
    handles: dict[str, Any] = {}
    titles: dict[str, None] = {}
    for ax in drawn.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        if legend := ax.get_legend():
            titles[legend.get_title().get_text()] = None
            legend.remove()
    title = next(iter(titles)) if len(titles) == 1 else None
    with styled():
        drawn.legend(list(handles.values()), list(handles), title=title, **place)


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
