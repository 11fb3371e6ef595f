"""Machines: devices, the hosts they sit in, and the clusters made of hosts.

What: frozen descriptions with units and sources, from which cost models read bandwidths and capacities.
Source: each object says its own.
Simplified: all devices of a host are alike and all hosts of a cluster are alike; inside a host one link joins the
devices, or two where some of them form islands with a faster one.
Left out: CPUs' speed, disks, NUMA, energy, price.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from workbench.cluster.links import Link, require_number, require_source

__all__ = ["Device", "Host", "Topology", "Wiring"]


class Wiring(Enum):
    """How the devices of a host, or the hosts of a cluster, share their links."""

    SWITCHED = "every member has its own link into a switch without limits of its own"
    SHARED = "one link is shared by all members, such as a single PCIe bridge"
    TORUS_2D = "every member is joined to its four neighbours in a two-dimensional torus"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """An accelerator.

    name: the maker's name.
    memory_bytes: capacity.
    fp16_flops_per_s: peak rate in half precision, with matrix units.
    fp32_flops_per_s: peak rate in single precision, without matrix units.
    memory_bytes_per_s: peak memory bandwidth.
    source: where the numbers come from.
    inferred: names of the fields that the source does not state.
    """

    name: str
    memory_bytes: float
    fp16_flops_per_s: float
    fp32_flops_per_s: float
    memory_bytes_per_s: float
    source: str
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "fp16_flops_per_s", "fp32_flops_per_s", "memory_bytes_per_s"):
            require_number(self, field, above_zero=True)
        require_source(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine with devices.

    name: what the paper or the vendor calls it.
    device: what it computes with.
    num_devices: how many of them.
    device_link: joins any two devices of the host that share no island.
    wiring: how the devices share that link.
    island_size: devices per island; 1 where there are no islands.
    island_link: the faster link inside an island, if any.
    memory_bytes: the CPU's memory, where known.
    source: where the numbers come from.
    inferred: names of the fields that the source does not state.
    """

    name: str
    device: Device
    num_devices: int
    device_link: Link
    wiring: Wiring = Wiring.SWITCHED
    island_size: int = 1
    island_link: Link | None = None
    memory_bytes: float | None = None
    source: str
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_count(self, "num_devices")
        _require_count(self, "island_size")
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
    """Hosts and the network between them.

    name: the catalogue's name.
    host: what every machine of the cluster is.
    num_hosts: how many.
    network: joins any two hosts; None where there is one.
    wiring: how the hosts share the network.
    storage: the way to remote persistent storage, shared by all hosts, where the paper has one.
    source: where the numbers come from.
    inferred: names of the fields that the source does not state.
    """

    name: str
    host: Host
    num_hosts: int = 1
    network: Link | None = None
    wiring: Wiring = Wiring.SWITCHED
    storage: Link | None = None
    source: str
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_count(self, "num_hosts")
        if self.num_hosts > 1 and self.network is None:
            raise ValueError(f"Topology.network is None: {self.num_hosts} hosts must have one")
        require_source(self)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.num_hosts * self.host.num_devices

    def host_of(self, device: int) -> int:
        """Return the host of a device; devices are numbered host by host.

        Raises:
            ValueError: there is no such device.
        """
        if not 0 <= device < self.num_devices:
            raise ValueError(f"device is {device}: it must lie in 0..{self.num_devices - 1}")
        return device // self.host.num_devices

    def link_between(self, one: int, other: int) -> Link:
        """Return the link that a message between two different devices is limited by.

        Raises:
            ValueError: a device does not exist, or both are the same.
        """
        if one == other:
            raise ValueError(f"one and other are both {one}: they must be different devices")
        if self.host_of(one) != self.host_of(other):
            return self.network
        same_island = one // self.host.island_size == other // self.host.island_size
        return self.host.island_link if same_island else self.host.device_link

    def slowest_link(self, devices: list[int]) -> Link:
        """Return the link with the least bandwidth on the ring through the devices in the given order.

        Raises:
            ValueError: fewer than two devices, or one that does not exist.
        """
        if len(devices) < 2:
            raise ValueError(f"devices is {devices!r}: a ring needs at least two")
        following = [*devices[1:], devices[0]]
        links = [self.link_between(one, other) for one, other in zip(devices, following, strict=True)]
        return min(links, key=lambda link: link.bandwidth_bytes_per_s)


def _require_count(thing: object, field: str) -> None:
    value = getattr(thing, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{type(thing).__name__}.{field} is {value!r}: it must be an integer of at least 1")
