"""One tensor-parallel layer as it is predicted, with its control and its timeline, and one reduction as ranks run it.

The paper times two sizes of each method; every other size lies on the line through these two, which is exact for bytes
and an assumption for encoding and decoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from workbench.cluster import Link
from workbench.compression import Aggregation, Codec
from workbench.explore.explorer import Explorer, choice, steps
from workbench.parallel import ProcessTensorGroup
from workbench.plots import figure, format_bytes, format_time, gantt, lines
from workbench.plots.style import GREY
from workbench.techniques.activation_compression.cost import LayerTime, Setting, layer_time
from workbench.timeline import Action, Kind, Recorder, Task, Timeline, simulate

__all__ = ["BITS", "CODE_SIZES", "Approach", "Comparison", "LayerPrediction", "RecordedReduction"]
__all__ += ["break_even_bytes_per_s", "explore_activation_compression", "partial_of", "predict_layer"]
__all__ += ["record_reduction"]

HIDDEN = 1024  # columns of an activation of BERT-large, section 4.1
VALUE_BITS = 16  # of an uncompressed value, fp16
NUM_RANKS = 4  # tensor-parallel ranks: the four GPUs of one machine, section 4.1

CODE_SIZES = (25, 50, 100, 200, 400)  # to choose from: columns of the code, or as much of a sparse message
BITS = (2, 4, 8)  # that quantisation packs a value into
PCIE_3_BYTES_PER_S = 10e9  # a PCIe 3.0 bridge with 16 lanes, what is reached of 15.75e9
LATENCY_S = 10e-6  # of one message between two GPUs of a machine; an order of magnitude
BANDWIDTHS = (  # to choose from, bytes/s, and a link that has about as much
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


class Approach(Enum):
    """What is done to an activation, in words."""

    NONE = "no compression"
    AUTO_ENCODER = "auto-encoder"
    TOP_K_SAME_BYTES = "Top-K, same bytes"
    TOP_K_SAME_ELEMENTS = "Top-K, same elements"
    RANDOM_K_SAME_BYTES = "Random-K, same bytes"
    QUANTIZATION = "quantisation"


SUMMED = frozenset({Approach.NONE, Approach.AUTO_ENCODER})  # an all-reduce can add these messages; others are gathered

# The two sizes that the paper times: the methods' names in table 1, and their sizes (columns of the code, or bits).
_TIMED: Mapping[Approach, tuple[tuple[str, int], tuple[str, int]]] = MappingProxyType(
    {
        Approach.AUTO_ENCODER: (("A1", 50), ("A2", 100)),
        Approach.TOP_K_SAME_BYTES: (("T1", 50), ("T2", 100)),
        Approach.TOP_K_SAME_ELEMENTS: (("T3", 50), ("T4", 100)),
        Approach.RANDOM_K_SAME_BYTES: (("R1", 50), ("R2", 100)),
        Approach.QUANTIZATION: (("Q1", 2), ("Q2", 4)),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPrediction:
    """One layer, forward and backward, on each of four ranks."""

    approach: Approach  # what is done to the activations
    code_size: int  # columns of the code, or as much of another method
    bandwidth_bytes_per_s: float  # of the link between the ranks
    time: LayerTime  # seconds by part
    message_bytes: float  # handed by a rank to one forward reduction

    @property
    def communication_share(self) -> float:
        """Share of the time that is spent in reductions."""
        return (self.time.transfer_s + self.time.backward_transfer_s) / self.time.total_s

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What a rank does, in order: each task waits for the one before."""
        time, half = self.time, 0.5
        forward_label = "sum" if self.approach in SUMMED else "gather"
        parts = []
        for part in ("attention", "MLP"):
            parts.append((part, half * time.forward_s, Kind.FORWARD))
            parts.append(("encode", half * time.encode_s, Kind.ENCODE))
            parts.append((forward_label, half * time.transfer_s, Kind.COMMUNICATE))
            parts.append(("decode", half * time.decode_s, Kind.DECODE))
        for part in ("MLP", "attention"):
            parts.append((part, half * time.backward_s, Kind.BACKWARD))
            parts.append(("sum", half * time.backward_transfer_s, Kind.COMMUNICATE))
        return tuple(
            Task(
                name=f"{number}",
                label=label,
                resources=(self.approach.value,),
                duration_s=seconds,
                kind=kind,
                after=(f"{number - 1}",) if number else (),
            )
            for number, (label, seconds, kind) in enumerate(parts)
        )

    @property
    def timeline(self) -> Timeline:
        """The layer as it passes on one rank; steps that take no time are left out."""
        timeline = simulate(self.tasks)
        return Timeline(actions=tuple(action for action in timeline.actions if action.duration_s > 0))


def predict_layer(
    *, approach: Approach = Approach.NONE, code_size: int = 100, bandwidth_bytes_per_s: float = PCIE_3_BYTES_PER_S
) -> LayerPrediction:
    """Predict one layer of BERT-large on four ranks, micro-batch 32, 512 tokens, fp16."""
    if not 1 <= code_size < HIDDEN:
        raise ValueError(f"code_size is {code_size!r}; it must lie in 1..{HIDDEN - 1}")
    link = Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=LATENCY_S)
    if approach is Approach.NONE:
        time, message_bytes = _timed("w/o", link)
    else:
        time, message_bytes = _between(approach, code_size, link)
    return LayerPrediction(
        approach=approach,
        code_size=code_size,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        time=time,
        message_bytes=message_bytes,
    )


def break_even_bytes_per_s(approach: Approach, code_size: int) -> float:
    """Return the bandwidth above which compression slows a layer, on the line through two predictions."""

    def saved_s(bandwidth_bytes_per_s: float) -> float:
        plain, compressed = (
            predict_layer(approach=way, code_size=code_size, bandwidth_bytes_per_s=bandwidth_bytes_per_s).time.total_s
            for way in (Approach.NONE, approach)
        )
        return plain - compressed

    low, high = 1e9, 2e9
    slope = (saved_s(low) - saved_s(high)) / (1 / low - 1 / high)  # bytes saved in series
    constant_s = saved_s(low) - slope / low  # seconds gained where bytes are free; negative: encoding costs
    if slope <= 0 or constant_s >= 0:
        raise ValueError(f"approach is {approach!r}; it must cost time and save bytes to have a break-even")
    return -slope / constant_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One layer without and with compression, at the chosen bandwidth and at all of them."""

    plain: LayerPrediction  # uncompressed, at the chosen bandwidth
    chosen: LayerPrediction  # as chosen
    curves: tuple[LayerPrediction, ...]  # both, at every bandwidth

    @property
    def speedup(self) -> float:
        """Time without compression over time with it."""
        return self.plain.time.total_s / self.chosen.time.total_s

    @property
    def timeline(self) -> Timeline:
        """Both layers under each other."""
        return Timeline(actions=self.plain.timeline.actions + self.chosen.timeline.actions)


def compare(*, approach: Approach, code_size: int, bandwidth_bytes_per_s: float) -> Comparison:
    """Predict the layer without and with compression, at the chosen bandwidth and at all others."""

    def predict(way: Approach, bandwidth: float) -> LayerPrediction:
        return predict_layer(approach=way, code_size=code_size, bandwidth_bytes_per_s=bandwidth)

    ways = dict.fromkeys((Approach.NONE, approach))
    return Comparison(
        plain=predict(Approach.NONE, bandwidth_bytes_per_s),
        chosen=predict(approach, bandwidth_bytes_per_s),
        curves=tuple(predict(way, bandwidth) for way in ways for bandwidth, _ in BANDWIDTHS),
    )


def describe(comparison: Comparison) -> str:
    """Say in a sentence what the figure shows."""
    chosen, speedup = comparison.chosen, comparison.speedup
    total = format_time(chosen.time.total_s)
    if chosen.approach is Approach.NONE:
        return f"Without compression a layer takes {total}, {chosen.communication_share:.0%} of it in all-reduces."
    name = chosen.approach.value[0].upper() + chosen.approach.value[1:]
    return (
        f"{name}: a message of {format_bytes(chosen.message_bytes)} "
        f"({Setting().activation_bytes() / chosen.message_bytes:.3g} times smaller), a layer of {total}: "
        f"{_in_words(speedup)} than without compression ({format_time(comparison.plain.time.total_s)})."
    )


def draw(comparison: Comparison) -> Figure:
    """Draw time against bandwidth, and below it the timelines at the chosen bandwidth."""
    drawn, _ = figure(2, 1, figsize=(8, 5.2), height_ratios=(3, 2))
    above, below = drawn.axes
    _curves(above, comparison)
    gantt(comparison.timeline, ax=below)
    bandwidth = comparison.chosen.bandwidth_bytes_per_s
    result = "" if comparison.chosen.approach is Approach.NONE else f": {_in_words(comparison.speedup)}"
    below.set_title(f"where the time goes at {gigabytes(bandwidth)} ({dict(BANDWIDTHS)[bandwidth]}){result}")
    return drawn


def explore_activation_compression() -> Explorer[Comparison]:
    """Return the explorer: three controls, the predicted time of a layer, its timeline."""
    return Explorer(
        compare,
        draw,
        describe=describe,
        approach=choice(
            "method",
            {approach.value: approach for approach in Approach},
            value=Approach.AUTO_ENCODER,
            help="What a rank does to its activation before it is sent. Only the auto-encoder's codes can be summed.",
        ),
        code_size=steps(
            "code size",
            CODE_SIZES,
            value=100,
            text=lambda size: f"{size} columns",
            help=f"Of {HIDDEN} columns. Sparse methods send as many bytes or elements as the code; quantisation takes "
            "the nearest of 2, 4 and 8 bits.",
        ),
        bandwidth_bytes_per_s=steps(
            "bandwidth",
            [bandwidth for bandwidth, _ in BANDWIDTHS],
            value=PCIE_3_BYTES_PER_S,
            text=gigabytes,
            help="Of the link between the four ranks. The slower it is, the more a saved byte is worth.",
        ),
    )


def _curves(ax: Axes, comparison: Comparison) -> None:
    rows = [
        {"bandwidth": at.bandwidth_bytes_per_s / 1e9, "time": at.time.total_s * 1e3, "method": at.approach.value}
        for at in comparison.curves
    ]
    lines(rows, ax=ax, x="bandwidth", y="time", by="method", log_x=True, log_y=True)
    ax.set(xlabel="bandwidth (GB/s)", ylabel="one layer (ms)")
    ax.axvline(comparison.chosen.bandwidth_bytes_per_s / 1e9, color=GREY, linestyle="--", linewidth=1)
    ax.set_title("predicted time of one tensor-parallel layer, forward and backward")


def _in_words(speedup: float) -> str:
    return f"{speedup:.2f} times faster" if speedup >= 1 else f"{1 / speedup:.2f} times slower"


def gigabytes(bandwidth_bytes_per_s: float) -> str:
    return f"{bandwidth_bytes_per_s / 1e9:.3g} GB/s"


def _timed(name: str, link: Link) -> tuple[LayerTime, float]:
    setting = Setting(method=name, tp=NUM_RANKS, pp=1)
    return layer_time(setting, link), setting.encoded_bytes()


def _between(approach: Approach, code_size: int, link: Link) -> tuple[LayerTime, float]:
    (first, first_size), (second, second_size) = _TIMED[approach]
    size = code_size
    if approach is Approach.QUANTIZATION:  # the bits whose message is nearest in size to the code's, as a ratio
        wanted = VALUE_BITS * code_size / HIDDEN
        size = min(BITS, key=lambda bits: max(bits / wanted, wanted / bits))
    share = (size - first_size) / (second_size - first_size)
    (first_time, first_bytes), (second_time, second_bytes) = _timed(first, link), _timed(second, link)

    def on_line(at_first: float, at_second: float) -> float:
        return at_first + share * (at_second - at_first)

    time = {
        name: on_line(getattr(first_time, name), getattr(second_time, name)) for name in LayerTime.__dataclass_fields__
    }
    return LayerTime(**time), on_line(first_bytes, second_bytes)


# --- one reduction on real ranks, step by step


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedReduction:
    """What one rank did in one reduction."""

    total: Tensor  # the sum as this rank knows it, [tokens, hidden]
    message_bytes: int  # handed to the collective
    actions: tuple[Action, ...]  # encode, the collective, decode


def partial_of(rank: int, shape: tuple[int, ...]) -> Tensor:
    """Return a rank's partial sum, [tokens, hidden]: standard normal fp32 numbers, seeded by the rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def record_reduction(codec: Codec, shape: tuple[int, ...]) -> RecordedReduction:
    """Reduce the partials of all ranks through a codec, once unrecorded to connect; call it on every rank."""
    group = ProcessTensorGroup()
    (rank,) = group.local_ranks
    partial = partial_of(rank, shape)
    with torch.no_grad():
        _reduce(codec, partial, group, Recorder(resource="first"))
        group.traffic.clear()
        group.sum([torch.zeros(1)])  # the ranks start together
        group.traffic.clear()
        recorder = Recorder(resource=f"rank {rank}")
        total = _reduce(codec, partial, group, recorder)
    return RecordedReduction(total=total, message_bytes=group.traffic.num_bytes(), actions=recorder.actions)


def _reduce(codec: Codec, partial: Tensor, group: ProcessTensorGroup, recorder: Recorder) -> Tensor:
    with recorder.during("encode", Kind.ENCODE):
        payload = codec.encode(partial)
    if codec.aggregation is Aggregation.SUM:
        with recorder.during("all-reduce", Kind.COMMUNICATE):
            sums = tuple(group.sum([code]) for code in payload.tensors)
        with recorder.during("decode", Kind.DECODE):
            return codec.decode(replace(payload, tensors=sums))
    with recorder.during("all-gather", Kind.COMMUNICATE):
        by_tensor = [group.gather([message]) for message in payload.tensors]
        gathered = [replace(payload, tensors=tensors) for tensors in zip(*by_tensor, strict=True)]
    with recorder.during("decode", Kind.DECODE):
        return codec.decode_sum(gathered)
