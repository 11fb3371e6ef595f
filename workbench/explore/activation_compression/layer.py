"""The predicted time of one tensor-parallel layer, with the timeline that adds up to it.

Source: "Does compressing activations help model parallel training?", sections 3.2 and
4.7; the seconds are `workbench.techniques.activation_compression.cost.layer_time`.
Simplified: the paper times two sizes of each method; every other size lies on the line
through these two, which is exact for bytes and an assumption for encoding and decoding.
Attention and MLP share a layer's compute equally. A rank computes and communicates in
turn, so one row shows it all.
Left out: pipeline stages, the optimizer, the encoder's own gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from workbench.cluster import Link
from workbench.techniques.activation_compression.cost import LayerTime, Setting, layer_time
from workbench.timeline import Kind, Task, Timeline, simulate

__all__ = ["BITS", "CODE_SIZES", "Approach", "LayerPrediction", "break_even_bytes_per_s", "predict_layer"]

HIDDEN = 1024  # columns of an activation of BERT-large, section 4.1
VALUE_BITS = 16  # of an uncompressed value, fp16
NUM_RANKS = 4  # tensor-parallel ranks: the four GPUs of one machine, section 4.1

#: Sizes to choose from: columns of the code, or as much of a sparse message.
CODE_SIZES = (25, 50, 100, 200, 400)
#: Bits that quantisation packs a value into.
BITS = (2, 4, 8)

PCIE_3_BYTES_PER_S = 10e9  # a PCIe 3.0 bridge with 16 lanes, what is reached of 15.75e9
LATENCY_S = 10e-6  # of one message between two GPUs of a machine; an order of magnitude


class Approach(Enum):
    """What is done to an activation, in words."""

    NONE = "no compression"
    AUTO_ENCODER = "auto-encoder"
    TOP_K_SAME_BYTES = "Top-K, same bytes"
    TOP_K_SAME_ELEMENTS = "Top-K, same elements"
    RANDOM_K_SAME_BYTES = "Random-K, same bytes"
    QUANTIZATION = "quantisation"


#: Whose messages an all-reduce can add; the others are gathered.
SUMMED = frozenset({Approach.NONE, Approach.AUTO_ENCODER})

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

    approach: Approach  #: what is done to the activations
    code_size: int  #: columns of the code it is compared with
    bandwidth_bytes_per_s: float  #: of the link between the ranks
    time: LayerTime  #: where the seconds go
    message_bytes: float  #: what a rank hands to one forward reduction

    @property
    def times_smaller(self) -> float:
        """How many times smaller the message is than the activation."""
        return Setting().activation_bytes() / self.message_bytes

    @property
    def communication_share(self) -> float:
        """Share of the time that is spent in reductions."""
        return (self.time.transfer_s + self.time.backward_transfer_s) / self.time.total_s

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What a rank does, in order: each task waits for the one before."""
        time, half = self.time, 0.5
        forward_label = "sum" if self.approach in SUMMED else "gather"
        steps = [
            step
            for part in ("attention", "MLP")
            for step in (
                (f"{part}", half * time.forward_s, Kind.FORWARD),
                ("encode", half * time.encode_s, Kind.ENCODE),
                (forward_label, half * time.transfer_s, Kind.COMMUNICATE),
                ("decode", half * time.decode_s, Kind.DECODE),
            )
        ] + [
            step
            for part in ("MLP", "attention")
            for step in (
                (f"{part}", half * time.backward_s, Kind.BACKWARD),
                ("sum", half * time.backward_transfer_s, Kind.COMMUNICATE),
            )
        ]
        return tuple(
            Task(
                name=f"{number}",
                label=label,
                resources=(self.approach.value,),
                duration_s=seconds,
                kind=kind,
                after=(f"{number - 1}",) if number else (),
            )
            for number, (label, seconds, kind) in enumerate(steps)
        )

    @property
    def timeline(self) -> Timeline:
        """The layer as it passes on one rank; steps that take no time are left out."""
        timeline = simulate(self.tasks)
        return Timeline(actions=tuple(action for action in timeline.actions if action.duration_s > 0))


def predict_layer(
    *, approach: Approach = Approach.NONE, code_size: int = 100, bandwidth_bytes_per_s: float = PCIE_3_BYTES_PER_S
) -> LayerPrediction:
    """Predict one layer of BERT-large on four ranks, micro-batch 32, 512 tokens, fp16.

    Args:
        approach: what is done to the activations on their way forward.
        code_size: columns of the code; a sparse message has as many bytes or elements, and
            quantisation takes the number of bits that comes nearest.
        bandwidth_bytes_per_s: of the link between the ranks.

    Raises:
        ValueError: if the code does not have 1 to 1023 columns.

    Source: section 4.7, tables 1 and 4.
    """
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
    """Return the bandwidth above which a layer is slower compressed than not.

    The reductions' time is a constant plus bytes over bandwidth, so two predictions give the line.

    Raises:
        ValueError: if it pays at every bandwidth, or at none.
    """

    def saved_s(bandwidth_bytes_per_s: float) -> float:
        plain, compressed = (
            predict_layer(approach=each, code_size=code_size, bandwidth_bytes_per_s=bandwidth_bytes_per_s).time.total_s
            for each in (Approach.NONE, approach)
        )
        return plain - compressed

    one, two = 1e9, 2e9
    slope = (saved_s(one) - saved_s(two)) / (1 / one - 1 / two)  # bytes saved in series
    constant_s = saved_s(one) - slope / one  # seconds gained where bytes are free; negative: encoding costs
    if slope <= 0 or constant_s >= 0:
        raise ValueError(f"approach is {approach!r}; it must cost time and save bytes to have a break-even")
    return -slope / constant_s


def _timed(name: str, link: Link) -> tuple[LayerTime, float]:
    setting = Setting(method=name, tp=NUM_RANKS, pp=1)
    return layer_time(setting, link), setting.encoded_bytes()


def _between(approach: Approach, code_size: int, link: Link) -> tuple[LayerTime, float]:
    (one, one_size), (two, two_size) = _TIMED[approach]
    size = _nearest_bits(code_size) if approach is Approach.QUANTIZATION else code_size
    share = (size - one_size) / (two_size - one_size)
    (one_time, one_bytes), (two_time, two_bytes) = _timed(one, link), _timed(two, link)
    fields = LayerTime.__dataclass_fields__
    time = {name: _on_line(getattr(one_time, name), getattr(two_time, name), share) for name in fields}
    return LayerTime(**time), _on_line(one_bytes, two_bytes, share)


def _on_line(one: float, two: float, share: float) -> float:
    return one + share * (two - one)


def _nearest_bits(code_size: int) -> int:
    """Return the bits whose message is nearest in size to the code's, as a ratio."""
    wanted = VALUE_BITS * code_size / HIDDEN
    return min(BITS, key=lambda bits: max(bits / wanted, wanted / bits))
