"""One fitted machine for all cost models: rates, links and fixed costs, each fitted or stated, all times linear.

A time is a count over a rate, or alpha + beta x; launching and computing overlap by their p-norm.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Self

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.cluster.machines import GIGABIT_BYTES_PER_S, Link
from workbench.cluster.papers import catalogue

__all__ = ["CodecCost", "FittedMachine", "lists_population"]

GROWN_FROM = 2**20  # number of indices for which the cost of one index is stated
SMALL_SAMPLE = 5  # elements; CPython, Lib/random.py
SMALL_SET = 21  # entries of a small set; likewise
ROUNDING = 1e-9  # keeps the logarithm of a power of four whole


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecCost:
    """A rank's costs of encoding and decoding one message; all fields but the ratio and the exponent are in seconds."""

    encode_s_per_element: float = 0.0  # for each element of the tensor
    encode_s_per_sent: float = 0.0  # for each element of the code, or for each element kept
    decode_s_per_element: float = 0.0  # for each element of the tensor, a message
    decode_s_per_sent: float = 0.0  # for each element of the code, or for each element kept, a message
    backward_ratio: float = 0.0  # the backward pass of a learned code over its encoding and decoding
    launch_s: float = 0.0  # fixed: launching the kernels of one message, forward
    launch_s_per_decoded: float = 0.0  # fixed, for each message decoded
    backward_launch_s: float = 0.0  # fixed: launching the kernels of one message, backward
    sample_s_per_sent: float = 0.0  # drawing one index of 2^20 by `random.sample` on the CPU, while the device waits
    pool_s_per_element: float = 0.0  # listing one index beforehand, which `random.sample` does where it keeps many
    sample_growth: float = 0.0  # exponent by which an index costs more the more are drawn, as caches overflow

    def __post_init__(self) -> None:
        require_not_negative(**{entry.name: getattr(self, entry.name) for entry in fields(self)})

    def encode_s(self, elements: float, sent: float) -> float:
        """Return the seconds of encoding one message on the device, without launching."""
        return self.encode_s_per_element * elements + self.encode_s_per_sent * sent

    def decode_s(self, elements: float, sent: float) -> float:
        """Return the seconds of decoding one message, without launching."""
        return self.decode_s_per_element * elements + self.decode_s_per_sent * sent

    def sample_s(self, elements: int, sent: int) -> float:
        """Return the seconds of drawing `sent` of `elements` indices on the CPU.

        CPython's `random.sample` remembers drawn indices in a set where that is smaller than the population, and
        otherwise first lists the whole population. That makes a dip where the set takes over; here the time stays level
        until the set's own cost has caught up, so that more never costs less.
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
        slower = (sent / GROWN_FROM) ** self.sample_growth
        return slower * (self.sample_s_per_sent * sent + self.pool_s_per_element * listed)


def lists_population(elements: int, sent: int) -> bool:
    """Tell whether `random.sample` lists all `elements` before it draws `sent` of them (CPython, Lib/random.py)."""
    table = SMALL_SET
    if sent > SMALL_SAMPLE:
        table += 4 ** math.ceil(math.log(sent * 3, 4))
    return elements <= table


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedMachine:
    """Hosts of one kind with stated or fitted rates and fixed costs. A codec that is not listed costs nothing."""

    name: str  # name of the machine
    source: str  # where the numbers come from
    flops_per_s: float  # rate of matrix products on one device
    link: Link  # one connection between two devices of a host
    num_hosts: int = 1  # hosts
    devices_per_host: int = 1  # devices, each with a rank
    peak_flops_per_s: float | None = None  # peak of one device, by its data sheet
    memory_bytes_per_s: float | None = None  # memory bandwidth of one device
    host_memory_bytes: float | None = None  # CPU memory of one host
    link_share: float = 1.0  # share of the link that a message between two ranks reaches; collectives reach all
    # For a number of ranks, the connections that each group of a host uses at once. A number of ranks that is not
    # listed has the connections of the next smaller listed number, or else 1.
    connections: Mapping[int, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))
    network: Link | None = None  # a host's connection to the others; None on a single host
    network_share: float = 1.0  # share of the network's bandwidth that messages between hosts reach
    copy_bytes_per_s: float | None = None  # one host's rate from devices to its memory or back
    storage_bytes_per_s: float | None = None  # to persistent storage, of all hosts together
    replicated_s_per_element: float = 0.0  # work that every tensor-parallel rank repeats, a layer, forward, for b·s·h
    attention_s_per_score: float = 0.0  # masking, softmax and dropout of scores, shared by the ranks, a layer, forward
    backward_over_forward: float = 2.0  # a layer's backward pass over its forward pass, communication apart
    layer_launch_s: float = 0.0  # launching one layer's kernels, forward
    collective_launch_s: float = 0.0  # launching one collective
    overlap_power: float = 4.0  # p of the p-norm of launching and computing; 1 adds them, infinity takes the longer
    gather_s: float = 0.0  # fixed, beyond an all-reduce: gathering a message of several tensors
    handover_s: float = 0.0  # fixed: handing one message to the next stage
    optimizer_s: float = 0.0  # fixed, an iteration
    optimizer_s_per_parameter: float = 0.0  # for each parameter of a rank
    head_s: float = 0.0  # fixed, a micro-batch, on the stage with the language-model head
    head_forward_s_per_logit: float = 0.0  # loss, forward, for each logit of a rank; the head's FLOPs are apart
    head_backward_s_per_logit: float = 0.0  # likewise, backward
    codecs: Mapping[Hashable, CodecCost] = field(default_factory=lambda: MappingProxyType({}))  # by family

    def __post_init__(self) -> None:
        in_seconds = ("_s", "_s_per_element", "_s_per_score", "_s_per_parameter", "_s_per_logit")
        rates = [entry.name for entry in fields(self) if entry.name.endswith(("s_per_s", "memory_bytes"))]
        times = [entry.name for entry in fields(self) if entry.name.endswith(in_seconds) and entry.name not in rates]
        require_not_negative(**{name: getattr(self, name) for name in (*times, "backward_over_forward")})
        known = [name for name in rates if name == "flops_per_s" or getattr(self, name) is not None]
        require_positive(**{name: getattr(self, name) for name in known})
        require_counts(1, num_hosts=self.num_hosts, devices_per_host=self.devices_per_host)
        for name in ("link_share", "network_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be in (0, 1]")
        if not self.overlap_power >= 1:
            raise ValueError(f"overlap_power is {self.overlap_power!r}; it must be at least 1")

    @classmethod
    def named(cls, name: str, *, peak_share: float = 1.0, **fitted) -> Self:
        """Return a machine of the catalogue of papers.

        Args:
            name: such as "gemini/16x-p4d".
            peak_share: share of a device's peak in half precision that products reach, unless `flops_per_s` is given.
            fitted: other fields, such as `network_share`.
        """
        if not 0 < peak_share <= 1:
            raise ValueError(f"peak_share is {peak_share!r}; it must be in (0, 1]")
        topology = catalogue[name]
        host, device = topology.host, topology.host.device
        stated: dict[str, Any] = {
            "name": host.name,
            "source": host.source,
            "flops_per_s": peak_share * device.fp16_flops_per_s,
            "peak_flops_per_s": device.fp16_flops_per_s,
            "link": host.device_link,
            "num_hosts": topology.num_hosts,
            "devices_per_host": host.num_devices,
            "memory_bytes_per_s": device.memory_bytes_per_s,
            "host_memory_bytes": host.memory_bytes,
            "network": topology.network,
            "storage_bytes_per_s": topology.storage and topology.storage.bandwidth_bytes_per_s,
        }
        return cls(**stated | fitted)

    def require(self, *names: str) -> None:
        """Refuse a machine with an unknown value of one of these fields."""
        for name in names:
            if getattr(self, name) is None:
                raise ValueError(f"{name} of machine {self.name!r} is None; it must be known")

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.num_hosts * self.devices_per_host

    @property
    def message_link(self) -> Link:
        """The link with the bandwidth that a message between two ranks of a host reaches."""
        return replace(self.link, bandwidth_bytes_per_s=self.link.bandwidth_bytes_per_s * self.link_share)

    @property
    def full_network(self) -> Link:
        """The network at its nominal rate; a single host has none and is refused."""
        if self.network is None:
            raise ValueError(f"network is None; machine {self.name!r} must have a connection to other hosts")
        return self.network

    @property
    def reached_network(self) -> Link:
        """The network with the bandwidth that a message between two hosts reaches."""
        reached = self.full_network.bandwidth_bytes_per_s * self.network_share
        return replace(self.full_network, bandwidth_bytes_per_s=reached)

    @property
    def network_bytes_per_s(self) -> float:
        """Bandwidth of one host that messages between hosts reach."""
        return self.reached_network.bandwidth_bytes_per_s

    def with_bandwidth(self, bandwidth_bytes_per_s: float) -> Self:
        """Return the same machine with another bandwidth of the link inside hosts, at the same latency."""
        return replace(self, link=replace(self.link, bandwidth_bytes_per_s=bandwidth_bytes_per_s))

    def with_network(self, num_gigabits: float) -> FittedMachine:
        """Return the same hosts on a network of another nominal rate, with the same latency and reached share."""
        nominal = num_gigabits * GIGABIT_BYTES_PER_S
        return replace(self, network=replace(self.full_network, bandwidth_bytes_per_s=nominal))

    def with_peak_share(self, share: float) -> FittedMachine:
        """Return the same machine whose matrix products reach another share of its devices' peak."""
        self.require("peak_flops_per_s")
        assert self.peak_flops_per_s is not None
        return replace(self, flops_per_s=share * self.peak_flops_per_s)

    def as_record(self) -> dict[str, Any]:
        """Return the known numbers that are not 0, as a record's calibration takes them; codecs are left out."""
        known = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain = {name: value for name, value in known.items() if value and not isinstance(value, Mapping)}
        return {name: asdict(value) if isinstance(value, Link) else value for name, value in plain.items()}

    def codec(self, family: Hashable) -> CodecCost:
        """Return the costs of a family of codecs."""
        return self.codecs.get(family, CodecCost())

    def connections_of(self, num_ranks: int) -> tuple[float, ...]:
        """Return the connections that each group of a host uses, for a number of ranks."""
        listed = max((known for known in self.connections if known <= num_ranks), default=None)
        return (1.0,) if listed is None else self.connections[listed]

    def overlapped_s(self, device_s: float, launch_s: float) -> float:
        """Return the seconds of device work and its launching, which run side by side."""
        longer, shorter = max(device_s, launch_s), min(device_s, launch_s)
        if longer == 0 or math.isinf(self.overlap_power):
            return longer
        return longer * (1 + (shorter / longer) ** self.overlap_power) ** (1 / self.overlap_power)
