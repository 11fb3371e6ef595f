"""Parts: the accelerators and links that the papers' machines are made of.

What: one constant a part, each number with its source.
Source: vendors' data sheets (NVIDIA Tesla V100, 2020; NVIDIA A100, 2021; PCI-SIG base specification 3.0 and 4.0),
and, where a paper states a number of its own, that paper.
Simplified: peak rates. The latencies are orders of magnitude: no paper states one, so every link marks its own
as inferred.
Left out: differences between makers of the same part, clocks under load.
"""

from __future__ import annotations

from workbench.cluster.links import GIGABIT_BYTES_PER_S, TCP_LATENCY_S, Link
from workbench.cluster.machines import Device

__all__ = [
    "A100_40GB",
    "A100_80GB",
    "NVLINK_2",
    "NVLINK_3",
    "PCIE_3",
    "PCIE_4",
    "V100_PCIE_16GB",
    "V100_PCIE_32GB",
    "V100_SXM2_16GB",
    "V100_SXM2_32GB",
    "ethernet",
    "rdma",
]

V100_SHEET = "NVIDIA Tesla V100 data sheet"
A100_SHEET = "NVIDIA A100 data sheet"

# Seconds before the first byte arrives, by kind of link; orders of magnitude.
NVLINK_LATENCY_S = 5e-6
PCIE_LATENCY_S = 10e-6
RDMA_LATENCY_S = 5e-6

# 16 lanes of 8 GT/s, of which 128 of 130 bits are data (PCI-SIG base specification 3.0).
PCIE_3_BYTES_PER_S = 16 * 8e9 * 128 / 130 / 8


def _v100(name: str, memory_bytes: float, fp16_flops_per_s: float, fp32_flops_per_s: float) -> Device:
    return Device(
        name=name,
        memory_bytes=memory_bytes,
        fp16_flops_per_s=fp16_flops_per_s,
        fp32_flops_per_s=fp32_flops_per_s,
        memory_bytes_per_s=900e9,
        source=V100_SHEET,
    )


def _a100(name: str, memory_bytes: float, memory_bytes_per_s: float) -> Device:
    return Device(
        name=name,
        memory_bytes=memory_bytes,
        fp16_flops_per_s=312e12,
        fp32_flops_per_s=19.5e12,
        memory_bytes_per_s=memory_bytes_per_s,
        source=f"{A100_SHEET}, SXM",
    )


def _link(bandwidth_bytes_per_s: float, latency_s: float, source: str) -> Link:
    """Return a link whose bandwidth `source` states, and not its latency."""
    return Link(
        bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, source=source, inferred=("latency_s",)
    )


V100_SXM2_16GB = _v100("V100 SXM2 16 GB", 16e9, 125e12, 15.7e12)
V100_SXM2_32GB = _v100("V100 SXM2 32 GB", 32e9, 125e12, 15.7e12)
V100_PCIE_16GB = _v100("V100 PCIe 16 GB", 16e9, 112e12, 14e12)
V100_PCIE_32GB = _v100("V100 PCIe 32 GB", 32e9, 112e12, 14e12)
A100_40GB = _a100("A100 40 GB", 40e9, 1555e9)
A100_80GB = _a100("A100 80 GB", 80e9, 2039e9)

NVLINK_2 = _link(
    150e9,
    NVLINK_LATENCY_S,
    f"{V100_SHEET}: six NVLink 2 links of 25 GB/s in each direction (300 GB/s, 2.4 Tbit/s, both ways); "
    "the thesis, section 4.3, note, has 1.2 Tbit/s in total, the same 150 GB/s one way",
)
NVLINK_3 = _link(
    300e9, NVLINK_LATENCY_S, f"{A100_SHEET}: twelve NVLink 3 links of 25 GB/s in each direction (600 GB/s both ways)"
)
PCIE_3 = _link(
    PCIE_3_BYTES_PER_S,
    PCIE_LATENCY_S,
    "PCI-SIG base specification 3.0: 16 lanes of 8 GT/s, 128b/130b (15.75 GB/s one way); "
    "the thesis, section 4.3, note, has about 100 Gbit/s in practice",
)
PCIE_4 = _link(
    2 * PCIE_3_BYTES_PER_S,
    PCIE_LATENCY_S,
    "PCI-SIG base specification 4.0: 16 lanes of 16 GT/s, 128b/130b (31.5 GB/s one way); "
    "ATP, section 2.2, has the 64 GB/s of both directions",
)


def ethernet(num_gigabits: float, source: str) -> Link:
    """Return a TCP/IP network of `num_gigabits` Gbit/s a host, as `source` states it."""
    return _link(num_gigabits * GIGABIT_BYTES_PER_S, TCP_LATENCY_S, source)


def rdma(num_gigabits: float, source: str) -> Link:
    """Return a network with remote direct memory access of `num_gigabits` Gbit/s a host, as `source` states it."""
    return _link(num_gigabits * GIGABIT_BYTES_PER_S, RDMA_LATENCY_S, source)
