"""A machine that the iteration's cost model knows: rates, links, codecs, each fitted or stated.

Source: "Does compressing activations help model parallel training?", section 4.7 (time follows FLOPs and elements),
section 3.2 and table 4 (encoding, decoding), table 12 (a floor that FLOPs do not explain: launching kernels).
Simplified: every time is linear in a count; one rate for all matrix products.
Left out: memory that runs short.

Units: seconds, bytes, elements, FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from workbench.cluster import Link

from ..method import Family

__all__ = ["CodecCost", "FittedMachine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecCost:
    """What encoding and decoding one message costs a rank.

    Attributes:
        encode_s_per_element: of the activation.
        encode_s_per_sent: of the code, or of the elements kept.
        decode_s_per_element: of the activation, for each message decoded.
        decode_s_per_sent: of the code or of the elements kept, for each message decoded.
        backward_ratio: the backward pass of a learned code over its encoding and decoding.
        launch_s: fixed: launching the kernels of one message, forward.
        launch_s_per_decoded: fixed, for each message decoded.
        backward_launch_s: fixed: launching the kernels of one message, backward.
        sample_s_per_sent: drawing one index of 2^20 with Python's `random.sample`, on the CPU, while the device waits.
        pool_s_per_element: listing one index beforehand, which `random.sample` does where it keeps many.
        sample_growth: exponent by which an index costs more the more are drawn, as caches overflow.
    """

    encode_s_per_element: float = 0.0
    encode_s_per_sent: float = 0.0
    decode_s_per_element: float = 0.0
    decode_s_per_sent: float = 0.0
    backward_ratio: float = 0.0
    launch_s: float = 0.0
    launch_s_per_decoded: float = 0.0
    backward_launch_s: float = 0.0
    sample_s_per_sent: float = 0.0
    pool_s_per_element: float = 0.0
    sample_growth: float = 0.0

    def __post_init__(self) -> None:
        _require_not_negative(self, [each.name for each in fields(self)])

    def encode_s(self, elements: int, sent: int) -> float:
        """Return the seconds of encoding one message on the device, launching apart."""
        return self.encode_s_per_element * elements + self.encode_s_per_sent * sent

    def decode_s(self, elements: int, sent: int) -> float:
        """Return the seconds of decoding one message, launching apart."""
        return self.decode_s_per_element * elements + self.decode_s_per_sent * sent

    def sample_s(self, elements: int, sent: int) -> float:
        """Return the seconds of drawing `sent` of `elements` indices on the CPU.

        CPython's `random.sample` remembers drawn indices in a set where a table of 4^ceil(log4(3·sent)) entries is
        smaller than the population, and otherwise first lists the whole population. That makes a dip where the set
        takes over; here the time stays level until the set's own cost has caught up, so that more never costs less.

        Source: CPython, Lib/random.py; section 3.2 of the paper (`random.sample`), rows R1 to R4 of tables 2, 4, 12.
        """
        if not sent or not (self.sample_s_per_sent or self.pool_s_per_element):
            return 0.0
        if lists_population(elements, sent):
            return self._drawn_s(sent, elements)
        last = 4 ** int(math.log(elements, 4) + ROUNDING)  # the largest population before this one that may be listed
        fewer = sent / elements * last
        if not lists_population(last, max(1, round(fewer))):
            return self._drawn_s(sent)
        return max(self._drawn_s(sent), self._drawn_s(fewer, last))

    def _drawn_s(self, sent: float, listed: float = 0) -> float:
        """Return the seconds of drawing `sent` indices, of a population of which `listed` are listed first."""
        slower = (sent / GROWN_FROM) ** self.sample_growth
        return slower * (self.sample_s_per_sent * sent + self.pool_s_per_element * listed)


GROWN_FROM = 2**20  # indices: what one costs is told for so many
SMALL_SAMPLE = 5  # elements; CPython, Lib/random.py
SMALL_SET = 21  # entries of a small set; likewise
ROUNDING = 1e-9  # keeps the logarithm of a power of four whole


def lists_population(elements: int, sent: int) -> bool:
    """Tell whether `random.sample` lists all `elements` before it draws `sent` of them.

    Source: CPython, Lib/random.py, `sample`.
    """
    table = SMALL_SET
    if sent > SMALL_SAMPLE:
        table += 4 ** math.ceil(math.log(sent * 3, 4))
    return elements <= table


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedMachine:
    """Rates and fixed costs of one kind of machine; put your own in, or fit them.

    Attributes:
        name: what it is.
        source: where its numbers come from.
        flops_per_s: that matrix products reach on one device.
        replicated_s_per_element: of B·s·h: what every tensor-parallel rank does alike, a layer, forward.
        attention_s_per_score: of B·heads·s², shared by the tensor-parallel ranks: masking, softmax and dropout of
            attention scores, which memory limits, a layer, forward.
        backward_over_forward: a layer's backward pass over its forward pass, communication apart.
        layer_launch_s: launching one layer's kernels, forward.
        collective_launch_s: launching one collective.
        overlap_power: how launching and computing overlap: their p-norm with this p; 1 adds them, infinity takes the
            longer one.
        link: one connection between two devices of a host.
        connections: for a number of ranks, how many such connections its groups use at once, group by group of a
            host; a number of ranks that is not listed has what the next smaller one has, or else 1.
        gather_s: fixed, beyond an all-reduce: gathering a message of several tensors.
        network: a host's connection to the others; None on a single host.
        network_share: of the network's bandwidth that an all-reduce across hosts reaches.
        handover_s: fixed: handing one message to the next stage.
        optimizer_s: fixed, an iteration.
        optimizer_s_per_parameter: for each parameter of a rank.
        head_s: fixed, a micro-batch: what the stage with the language-model head does beyond its FLOPs and logits.
        head_forward_s_per_logit: loss, forward, for each logit of a rank; the head's FLOPs are apart.
        head_backward_s_per_logit: likewise, backward.
        codecs: costs of each family of methods; none listed costs nothing.
    """

    name: str
    source: str
    flops_per_s: float
    link: Link
    replicated_s_per_element: float = 0.0
    attention_s_per_score: float = 0.0
    backward_over_forward: float = 2.0
    layer_launch_s: float = 0.0
    collective_launch_s: float = 0.0
    overlap_power: float = 4.0
    connections: Mapping[int, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))
    gather_s: float = 0.0
    network: Link | None = None
    network_share: float = 1.0
    handover_s: float = 0.0
    optimizer_s: float = 0.0
    optimizer_s_per_parameter: float = 0.0
    head_s: float = 0.0
    head_forward_s_per_logit: float = 0.0
    head_backward_s_per_logit: float = 0.0
    codecs: Mapping[Family, CodecCost] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        in_seconds = ("_s", "_s_per_element", "_s_per_score", "_s_per_parameter", "_s_per_logit")
        names = {each.name for each in fields(self) if each.name.endswith(in_seconds)} - {"flops_per_s"}
        _require_not_negative(self, sorted({*names, "backward_over_forward"}))
        for name in ("flops_per_s", "network_share"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: must be finite and positive")
        if not self.overlap_power >= 1:
            raise ValueError(f"overlap_power={self.overlap_power}: at least 1")

    def codec(self, family: Family) -> CodecCost:
        """Return the costs of a family of methods."""
        return self.codecs.get(family, CodecCost())

    def connections_of(self, num_ranks: int) -> tuple[float, ...]:
        """Return the connections that groups of so many ranks use, group by group of a host."""
        listed = max((known for known in self.connections if known <= num_ranks), default=None)
        return (1.0,) if listed is None else self.connections[listed]

    def overlapped_s(self, device_s: float, launch_s: float) -> float:
        """Return the seconds of device work and its launching, which run side by side."""
        longer, shorter = max(device_s, launch_s), min(device_s, launch_s)
        if longer == 0 or math.isinf(self.overlap_power):
            return longer
        return longer * (1 + (shorter / longer) ** self.overlap_power) ** (1 / self.overlap_power)


def _require_not_negative(thing: object, names: list[str]) -> None:
    for name in names:
        value = getattr(thing, name)
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}={value}: must be finite and not negative")
