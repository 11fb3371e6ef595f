"""Devices, links, hosts and clusters of hosts: frozen descriptions, each number with its unit and source.

A link is the alpha-beta model (R. W. Hockney 1994): a fixed latency and a bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from workbench.checks import require_counts, require_not_negative, require_positive

__all__ = ["GIGABIT_BYTES_PER_S", "Device", "Host", "Link", "Machines", "Topology"]

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
        require_positive(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
        require_not_negative(latency_s=self.latency_s)
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


def require_source(thing: Link | Device | Host | Topology) -> None:
    """Refuse a dataclass without a `source`, and one whose `inferred` names something other than its fields."""
    kind = type(thing).__name__
    if not isinstance(thing.source, str) or not thing.source.strip():
        raise ValueError(f"{kind}.source is {thing.source!r}: it must say where the numbers come from")
    known = {field.name for field in fields(thing)}
    for name in thing.inferred:
        if name not in known:
            raise ValueError(f"{kind}.inferred names {name!r}: it must be a field of {kind}")


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
        rates = ("memory_bytes", "fp16_flops_per_s", "fp32_flops_per_s", "memory_bytes_per_s")
        require_positive(**{name: getattr(self, name) for name in rates})
        require_source(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine with devices."""

    name: str  # the paper's or the vendor's name
    device: Device  # kind of accelerator
    num_devices: int  # number of accelerators
    device_link: Link  # joins any two devices of the host
    memory_bytes: float | None = None  # the CPU's memory, where known
    source: str  # where the numbers come from
    inferred: tuple[str, ...] = ()  # names of the fields that the source does not state

    def __post_init__(self) -> None:
        require_counts(1, num_devices=self.num_devices)
        if self.memory_bytes is not None:
            require_positive(memory_bytes=self.memory_bytes)
        require_source(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Hosts and the network between them."""

    name: str  # the catalogue's name
    host: Host  # kind of all machines
    num_hosts: int = 1  # number of machines
    network: Link | None = None  # joins any two hosts; None where there is one
    storage: Link | None = None  # the way to remote persistent storage, shared by all hosts, where the paper has one
    source: str  # where the numbers come from
    inferred: tuple[str, ...] = ()  # names of the fields that the source does not state

    def __post_init__(self) -> None:
        require_counts(1, num_hosts=self.num_hosts)
        if self.num_hosts > 1 and self.network is None:
            raise ValueError(f"Topology.network is None: {self.num_hosts} hosts must have one")
        require_source(self)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.num_hosts * self.host.num_devices


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Machines of several GPUs; a link's latency is the start-up of one operation on it."""

    num_machines: int
    gpus_per_machine: int
    intra: Link  # link of each GPU inside its machine
    inter: Link  # link of each machine to the others

    def __post_init__(self) -> None:
        require_counts(1, num_machines=self.num_machines, gpus_per_machine=self.gpus_per_machine)
