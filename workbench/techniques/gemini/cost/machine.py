"""The machines of the model: devices, network, copying, storage, and the rates that only a run can tell.

Source: thesis, chapter 6 (Gemini), section 6.7.1 and table 6.1, as `workbench.cluster` has them; the rate of copying to
host memory: section 6.5.2, note: about 400 Gbit/s for a machine, measured on p4d and taken for p3dn as well (there four
PCIe 3 switches of 15.75 GB/s, two devices on each, would carry 504 Gbit/s at most).
Simplified: a machine's network and copying are shared evenly by its devices; storage serves all machines with one
bandwidth, at its nominal rate (as section 6.2.2 reckons its 42 minutes).
Left out: the switches between machines.

Units: bytes/s, FLOPs/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from workbench.cluster import Link, catalogue

__all__ = ["COPY_BYTES_PER_S", "GeminiMachine"]

GIGABIT_BYTES = 1e9 / 8
COPY_BYTES_PER_S = 400 * GIGABIT_BYTES  # of a machine's 8 devices together: section 6.5.2, note


@dataclass(frozen=True, kw_only=True, slots=True)
class GeminiMachine:
    """Machines of one kind, of which a training has several.

    Attributes:
        name: of the kind.
        num_machines: N.
        devices_per_machine: each with a share of network and copying.
        network: of one machine, nominal.
        network_efficiency: share of its bandwidth that messages reach, in (0, 1].
        copy_bytes_per_s: of one machine, from devices to host memory or back.
        storage_bytes_per_s: of all machines together, either way.
        flops_per_s: that training reaches on one device.
        peak_flops_per_s: of one device, half precision.
        memory_bytes_per_s: of one device.
        host_memory_bytes: of one machine.
    """

    name: str
    num_machines: int
    devices_per_machine: int
    network: Link
    network_efficiency: float = 1.0
    copy_bytes_per_s: float = COPY_BYTES_PER_S
    storage_bytes_per_s: float
    flops_per_s: float
    peak_flops_per_s: float
    memory_bytes_per_s: float
    host_memory_bytes: float

    def __post_init__(self) -> None:
        for name in ("num_machines", "devices_per_machine"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least 1")
        rates = (
            "copy_bytes_per_s",
            "storage_bytes_per_s",
            "flops_per_s",
            "peak_flops_per_s",
            "memory_bytes_per_s",
            "host_memory_bytes",
        )
        for name in rates:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value!r}; it must be finite and above 0")
        if not 0 < self.network_efficiency <= 1:
            raise ValueError(f"network_efficiency is {self.network_efficiency!r}; it must be in (0, 1]")

    @classmethod
    def named(cls, name: str, *, network_efficiency: float = 1.0, compute_efficiency: float = 1.0) -> GeminiMachine:
        """Return a machine of the cluster catalogue.

        Args:
            name: "gemini/16x-p4d" or "gemini/16x-p3dn".
            network_efficiency: share of the network's bandwidth.
            compute_efficiency: share of a device's peak in half precision.

        Raises:
            ValueError: if there is no such machine, it has no storage, or a share is not in (0, 1].
        """
        topology = catalogue[name]
        if topology.storage is None or topology.network is None or topology.host.memory_bytes is None:
            raise ValueError(f"machine is {name!r}; it must have a network, storage and a known host memory")
        if not 0 < compute_efficiency <= 1:
            raise ValueError(f"compute_efficiency is {compute_efficiency!r}; it must be in (0, 1]")
        device = topology.host.device
        return cls(
            name=topology.host.name,
            num_machines=topology.num_hosts,
            devices_per_machine=topology.host.num_devices,
            network=topology.network,
            network_efficiency=network_efficiency,
            storage_bytes_per_s=topology.storage.bandwidth_bytes_per_s,
            flops_per_s=compute_efficiency * device.fp16_flops_per_s,
            peak_flops_per_s=device.fp16_flops_per_s,
            memory_bytes_per_s=device.memory_bytes_per_s,
            host_memory_bytes=topology.host.memory_bytes,
        )

    @property
    def num_devices(self) -> int:
        """Of all machines."""
        return self.num_machines * self.devices_per_machine

    @property
    def network_bytes_per_s(self) -> float:
        """Of one machine, as messages find it."""
        return self.network.bandwidth_bytes_per_s * self.network_efficiency

    def of(self, num_machines: int) -> GeminiMachine:
        """Return another number of the same machines."""
        return replace(self, num_machines=num_machines)

    def with_network(self, num_gigabits: float) -> GeminiMachine:
        """Return the same machines on a network of another nominal rate in Gbit/s, as efficient and as late."""
        link = replace(self.network, bandwidth_bytes_per_s=num_gigabits * GIGABIT_BYTES)
        return replace(self, network=link)

    def with_compute(self, compute_efficiency: float) -> GeminiMachine:
        """Return the same machines reaching another share of their devices' peak."""
        return replace(self, flops_per_s=compute_efficiency * self.peak_flops_per_s)
