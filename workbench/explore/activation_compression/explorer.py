"""The lesson's control: method, size and bandwidth, and the predicted time of one layer.

Source: "Does compressing activations help model parallel training?", section 4.7 and
tables 1 and 4, through `layer.predict_layer`.
Simplified: as the prediction. Left out: as the prediction.
"""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.explore.controls import choice, steps
from workbench.explore.explorer import Explorer
from workbench.plots import figure, format_bytes, format_time, gantt, lines
from workbench.plots.style import GREY
from workbench.timeline import Timeline

from .layer import CODE_SIZES, HIDDEN, PCIE_3_BYTES_PER_S, Approach, LayerPrediction, predict_layer

__all__ = ["Comparison", "compare", "describe", "draw", "explore_activation_compression"]

#: Bandwidths to choose from, bytes/s, and what has about as much.
BANDWIDTHS = (
    (0.125e9, "1 Gbit/s Ethernet"),
    (0.5e9, "4 Gbit/s"),
    (1.25e9, "10 Gbit/s Ethernet"),
    (2.5e9, "20 Gbit/s"),
    (5e9, "40 Gbit/s"),
    (PCIE_3_BYTES_PER_S, "PCIe 3"),
    (20e9, "PCIe 4"),
    (40e9, "NVLink of a V100"),
    (80e9, "two such NVLinks"),
    (160e9, "four such NVLinks"),
    (320e9, "NVLink of an A100"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One layer without and with compression, at the chosen bandwidth and at all of them."""

    plain: LayerPrediction  #: uncompressed, at the chosen bandwidth
    chosen: LayerPrediction  #: as chosen
    curves: tuple[LayerPrediction, ...]  #: both, at every bandwidth

    @property
    def speedup(self) -> float:
        """Time without compression over time with it."""
        return self.plain.time.total_s / self.chosen.time.total_s

    @property
    def timeline(self) -> Timeline:
        """Both layers under each other."""
        return Timeline(actions=self.plain.timeline.actions + self.chosen.timeline.actions)


def compare(*, approach: Approach, code_size: int, bandwidth_bytes_per_s: float) -> Comparison:
    """Predict the layer without and with compression.

    Args:
        approach: what is done to the activations.
        code_size: columns of the code that sets the size of the message.
        bandwidth_bytes_per_s: of the link between the ranks.
    """
    pair = dict.fromkeys((Approach.NONE, approach))
    at = {
        each: predict_layer(approach=each, code_size=code_size, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
        for each in pair
    }
    curves = tuple(
        predict_layer(approach=each, code_size=code_size, bandwidth_bytes_per_s=bandwidth)
        for each in pair
        for bandwidth, _ in BANDWIDTHS
    )
    return Comparison(plain=at[Approach.NONE], chosen=at[approach], curves=curves)


def describe(comparison: Comparison) -> str:
    """Say in a sentence what the figure shows."""
    chosen, speedup = comparison.chosen, comparison.speedup
    total = format_time(chosen.time.total_s)
    if chosen.approach is Approach.NONE:
        return f"Without compression a layer takes {total}, {chosen.communication_share:.0%} of it in all-reduces."
    return (
        f"{chosen.approach.value[0].upper()}{chosen.approach.value[1:]}: a message of {format_bytes(chosen.message_bytes)} "
        f"({chosen.times_smaller:.3g} times smaller), a layer of {total}: "
        f"{_in_words(speedup)} than without compression ({format_time(comparison.plain.time.total_s)})."
    )


def draw(comparison: Comparison) -> Figure:
    """Draw time against bandwidth, and below it the timelines at the chosen bandwidth."""
    drawn, (above, below) = figure(2, 1, figsize=(8, 5.2), height_ratios=(3, 2))
    _curves(above, comparison)
    gantt(comparison.timeline, ax=below)
    bandwidth = comparison.chosen.bandwidth_bytes_per_s
    result = "" if comparison.chosen.approach is Approach.NONE else f": {_in_words(comparison.speedup)}"
    below.set_title(f"where the time goes at {_gigabytes(bandwidth)} ({dict(BANDWIDTHS)[bandwidth]}){result}")
    return drawn


def explore_activation_compression() -> Explorer[Comparison]:
    """Return the explorer: three controls, the predicted time of a layer, its timeline."""
    return Explorer(
        compare,
        draw,
        describe=describe,
        approach=choice(
            "method",
            {each.value: each for each in Approach},
            value=Approach.AUTO_ENCODER,
            help="What a rank does to its activation before it is sent. Only the auto-encoder's codes can be summed.",
        ),
        code_size=steps(
            "code size",
            CODE_SIZES,
            value=100,
            text=lambda size: f"{size} columns",
            help=f"Of {HIDDEN} columns. Sparse methods send as many bytes or elements as the code; quantisation takes the "
            "nearest of 2, 4 and 8 bits.",
        ),
        bandwidth_bytes_per_s=steps(
            "bandwidth",
            [bandwidth for bandwidth, _ in BANDWIDTHS],
            value=PCIE_3_BYTES_PER_S,
            text=_gigabytes,
            help="Of the link between the four ranks. The slower it is, the more a saved byte is worth.",
        ),
    )


def _curves(ax: Axes, comparison: Comparison) -> None:
    rows = [
        {"bandwidth": each.bandwidth_bytes_per_s / 1e9, "time": each.time.total_s * 1e3, "method": each.approach.value}
        for each in comparison.curves
    ]
    lines(
        rows,
        ax=ax,
        x="bandwidth",
        y="time",
        by="method",
        x_label="bandwidth (GB/s)",
        y_label="one layer (ms)",
        log_x=True,
        log_y=True,
    )
    ax.axvline(comparison.chosen.bandwidth_bytes_per_s / 1e9, color=GREY, linestyle="--", linewidth=1)
    ax.set_title("predicted time of one tensor-parallel layer, forward and backward")
    ax.legend(title=None)


def _in_words(speedup: float) -> str:
    return f"{speedup:.2f} times faster" if speedup >= 1 else f"{1 / speedup:.2f} times slower"


def _gigabytes(bandwidth_bytes_per_s: float) -> str:
    return f"{bandwidth_bytes_per_s / 1e9:.3g} GB/s"
