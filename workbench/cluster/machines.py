"""Devices, links, hosts and clusters of hosts: frozen descriptions, each number with its unit and source.

A link is the alpha-beta model (R. W. Hockney 1994): a fixed latency and a bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum

__all__ = ["GIGABIT_BYTES_PER_S", "Device", "Host", "Link", "Machines", "Topology", "Wiring"]
__all__ += ["require_count", "require_number"]

# Bytes per second that one gigabit per second carries (SI prefixes, 8 bits a byte).
GIGABIT_BYTES_PER_S = 1e9 / 8
# Seconds one way between two processes over TCP on data-centre Ethernet: an order of magnitude, not a measurement.
TCP_LATENCY_S = 50e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A full-duplex connection."""

    bandwidth_bytes_per_s: float  # bytes that pass in one second, in each direction
    latency_s: float = 0.0  # seconds before the first byte of a message arrives
    source: str = "stated by the caller"  # where the numbers come from
    inferred: tuple[str, ...] = ()  # names of the fields that the source does not state

    def __post_init__(self) -> None:
        require_number(self, "bandwidth_bytes_per_s", above_zero=True)
        require_number(self, "latency_s", above_zero=False)
        require_source(self)

    @classmethod
    def gigabit(cls) -> Link:
        """Return a 1 Gbit/s Ethernet link."""
        return cls._ethernet(1)

    @classmethod
    def ten_gigabit(cls) -> Link:
        """Return a 10 Gbit/s Ethernet link."""
        return cls._ethernet(10)

    @classmethod
    def _ethernet(cls, num_gigabits: int) -> Link:
        return cls(
            bandwidth_bytes_per_s=num_gigabits * GIGABIT_BYTES_PER_S,
            latency_s=TCP_LATENCY_S,
            source=f"nominal rate of {num_gigabits} Gbit/s Ethernet (IEEE 802.3)",
            inferred=("latency_s",),
        )

    def time_s(self, message_bytes: float) -> float:
        """Return the seconds a message of `message_bytes` bytes takes: latency + bytes / bandwidth."""
        if not message_bytes >= 0:
            raise ValueError(f"message_bytes is {message_bytes!r}: it must not be negative")
        return self.latency_s + message_bytes / self.bandwidth_bytes_per_s


def require_number(thing: object, field: str, *, above_zero: bool) -> None:
    """Refuse a field of a dataclass that is not a finite number, negative, or, where it must be above zero, 0."""
    value = getattr(thing, field)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (above_zero and value == 0):
        rule = "a finite number above 0" if above_zero else "a finite number, 0 or more"
        raise ValueError(f"{type(thing).__name__}.{field} is {value!r}: it must be {rule}")


def require_source(thing: object) -> None:
    """Refuse a dataclass without a `source`, and one whose `inferred` names something other than its fields."""
    kind = type(thing).__name__
    if not isinstance(thing.source, str) or not thing.source.strip():
        raise ValueError(f"{kind}.source is {thing.source!r}: it must say where the numbers come from")
    known = {field.name for field in fields(thing)}
    for name in thing.inferred:
        if name not in known:
            raise ValueError(f"{kind}.inferred names {name!r}: it must be a field of {kind}")


class Wiring(Enum):
    """How the devices of a host, or the hosts of a cluster, share their links."""

    SWITCHED = "every member has its own link into a switch without limits of its own"
    SHARED = "one link is shared by all members, such as a single PCIe bridge"
    TORUS_2D = "every member is joined to its four neighbours in a two-dimensional torus"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """An accelerator."""

    name: str  # the maker's name
    memory_bytes: float  # capacity
    fp16_flops_per_s: float  # peak rate in half precision, with matrix units
    fp32_flops_per_s: float  # peak rate in single precision, without matrix units
    memory_bytes_per_s: float  # peak memory bandwidth
    source: str  # where the numbers come from
    inferred: tuple[str, ...] = ()  # names of the fields that the source does not state

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "fp16_flops_per_s", "fp32_flops_per_s", "memory_bytes_per_s"):
            require_number(self, field, above_zero=True)
        require_source(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine with devices."""

    name: str  # the paper's or the vendor's name
    device: Device  # kind of accelerator
    num_devices: int  # number of accelerators
    device_link: Link  # joins any two devices of the host that share no island
    wiring: Wiring = Wiring.SWITCHED  # how the devices share that link
    island_size: int = 1  # devices per island; 1 where there are no islands
    island_link: Link | None = None  # the faster link inside an island, if any
    memory_bytes: float | None = None  # the CPU's memory, where known
    source: str  # where the numbers come from
    inferred: tuple[str, ...] = ()  # names of the fields that the source does not state

    def __post_init__(self) -> None:
        require_count(self, "num_devices")
        require_count(self, "island_size")
        if self.num_devices % self.island_size:
            rule = f"it must divide num_devices = {self.num_devices}"
            raise ValueError(f"Host.island_size is {self.island_size}: {rule}")
        if (self.island_link is None) != (self.island_size == 1):
            raise ValueError(f"Host.island_link is {self.island_link!r}: islands above 1, and only they, have one")
        if self.memory_bytes is not None:
            require_number(self, "memory_bytes", above_zero=True)
        require_source(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Hosts and the network between them."""

    name: str  # the catalogue's name
    host: Host  # kind of all machines
    num_hosts: int = 1  # number of machines
    network: Link | None = None  # joins any two hosts; None where there is one
    wiring: Wiring = Wiring.SWITCHED  # how the hosts share the network
    storage: Link | None = None  # the way to remote persistent storage, shared by all hosts, where the paper has one
    source: str  # where the numbers come from
    inferred: tuple[str, ...] = ()  # names of the fields that the source does not state

    def __post_init__(self) -> None:
        require_count(self, "num_hosts")
        if self.num_hosts > 1 and self.network is None:
            raise ValueError(f"Topology.network is None: {self.num_hosts} hosts must have one")
        require_source(self)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.num_hosts * self.host.num_devices

    def host_of(self, device: int) -> int:
        """Return the host of a device; devices are numbered host by host."""
        if not 0 <= device < self.num_devices:
            raise ValueError(f"device is {device}: it must lie in 0..{self.num_devices - 1}")
        return device // self.host.num_devices

    def link_between(self, one: int, other: int) -> Link:
        """Return the link that limits a message between two different devices."""
        if one == other:
            raise ValueError(f"one and other are both {one}: they must be different devices")
        if self.host_of(one) != self.host_of(other):
            return self.network
        same_island = one // self.host.island_size == other // self.host.island_size
        return self.host.island_link if same_island else self.host.device_link

    def slowest_link(self, devices: list[int]) -> Link:
        """Return the link with the least bandwidth on the ring through the devices in the given order."""
        if len(devices) < 2:
            raise ValueError(f"devices is {devices!r}: a ring needs at least two")
        following = [*devices[1:], devices[0]]
        links = [self.link_between(one, other) for one, other in zip(devices, following, strict=True)]
        return min(links, key=lambda link: link.bandwidth_bytes_per_s)


def require_count(thing: object, field: str) -> None:
    value = getattr(thing, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{type(thing).__name__}.{field} is {value!r}: it must be an integer of at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Machines of several GPUs; a link's latency is the start-up of one operation on it."""

    num_machines: int
    gpus_per_machine: int
    intra: Link  # link of each GPU inside its machine
    inter: Link  # link of each machine to the others

    def __post_init__(self) -> None:
        for field in ("num_machines", "gpus_per_machine"):
            require_count(self, field)

    @property
    def num_gpus(self) -> int:
        """GPUs of all machines."""
        return self.num_machines * self.gpus_per_machine
