"""The machine of the model: devices, the link between any two of them, and two rates that only a run can tell.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-A; data sheets, as
`workbench.cluster` has them.
Simplified: every rank has its own full-duplex link into a switch, as the catalogue has it. Table I agrees: over one
bridge shared by all, a broadcast to seven receivers would take seven times as long as a message, not about once.
Left out: the two processors that the devices of the paper's server hang on, and the way between them.

Units: FLOPs/s, bytes/s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.cluster import Device, Link, catalogue

__all__ = ["PAPER_MACHINE", "FlexMachine"]

PAPER_MACHINE = "flextp/8x-v100"  # the catalogue's name


@dataclass(frozen=True, kw_only=True, slots=True)
class FlexMachine:
    """Eight ranks, or another number, each with a device.

    Attributes:
        num_ranks: N, all of them tensor-parallel.
        device: whose memory bandwidth limits element-wise work.
        link: joins any two.
        product_flops_per_s: what matrix products reach on one device.
        message_efficiency: share of the link's bandwidth that messages between two ranks reach, above 0 and up to 1;
            collectives reach all of it.
    """

    num_ranks: int
    device: Device
    link: Link
    product_flops_per_s: float
    message_efficiency: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.num_ranks, int) or self.num_ranks < 2:
            raise ValueError(f"num_ranks is {self.num_ranks!r}; it must be an integer of at least 2")
        if not 0 < self.product_flops_per_s < float("inf"):
            raise ValueError(f"product_flops_per_s is {self.product_flops_per_s!r}; it must be finite and above 0")
        if not 0 < self.message_efficiency <= 1:
            raise ValueError(f"message_efficiency is {self.message_efficiency!r}; it must be in (0, 1]")

    @classmethod
    def named(cls, name: str = PAPER_MACHINE, **rates: float) -> FlexMachine:
        """Return a machine of the cluster catalogue, one host of it.

        Args:
            name: such as "flextp/8x-v100".
            rates: `product_flops_per_s` and, if known, `message_efficiency`.
        """
        host = catalogue[name].host
        return cls(num_ranks=host.num_devices, device=host.device, link=host.device_link, **rates)

    @property
    def message_link(self) -> Link:
        """The link as a message between two ranks finds it."""
        return replace(self.link, bandwidth_bytes_per_s=self.link.bandwidth_bytes_per_s * self.message_efficiency)

    def with_bandwidth(self, bandwidth_bytes_per_s: float) -> FlexMachine:
        """Return the same machine with another link, as late as this one."""
        return replace(self, link=replace(self.link, bandwidth_bytes_per_s=bandwidth_bytes_per_s))
