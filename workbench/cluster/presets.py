"""Machines from a line of text, such as "8x8 H100, 400 Gbit/s": machines x GPUs, kind of GPU, network between machines.

Rates are nominal. A network is TCP/IP unless the text ends in "RDMA"; storage is that of Gemini's paper.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from workbench.cluster.machines import Device, Host, Link, Topology
from workbench.cluster.papers import (
    A100_40GB,
    NVLINK_2,
    NVLINK_3,
    NVLINK_LATENCY_S,
    PCIE_3,
    V100_PCIE_32GB,
    V100_SXM2_32GB,
    catalogue,
    ethernet,
    rdma,
)

__all__ = ["GPUS", "preset"]

H100_SHEET = "NVIDIA H100 data sheet, SXM"
H100_80GB = Device(
    name="H100 80 GB",
    memory_bytes=80e9,
    fp16_flops_per_s=989e12,
    fp32_flops_per_s=67e12,
    memory_bytes_per_s=3350e9,
    source=f"{H100_SHEET}, without sparsity",
)
NVLINK_4 = Link(
    bandwidth_bytes_per_s=450e9,
    latency_s=NVLINK_LATENCY_S,
    source=f"{H100_SHEET}: eighteen NVLink 4 links of 25 GB/s in each direction (900 GB/s both ways)",
    inferred=("latency_s",),
)
GPUS: Mapping[str, tuple[Device, Link]] = MappingProxyType(
    {
        "V100": (V100_SXM2_32GB, NVLINK_2),
        "V100-PCIe": (V100_PCIE_32GB, PCIE_3),
        "A100": (A100_40GB, NVLINK_3),
        "H100": (H100_80GB, NVLINK_4),
    }
)
"""By name: the GPU, and its link to the others of its machine."""

FORM = re.compile(
    r"(\d+)\s*[x×]\s*(\d+)\s+([\w-]+)(?:\s*,\s*(\d+(?:\.\d+)?)\s*Gbit/s(?:\s+(RDMA|TCP))?)?", re.IGNORECASE
)


def preset(text: str) -> Topology:
    """Return the machines that a text describes; ValueError says which part of it is wrong."""
    match = FORM.fullmatch(text.strip())
    if not match:
        raise ValueError(f"machines is {text!r}; it must read like '8x8 H100, 400 Gbit/s' or '1x4 A100'")
    num_hosts, num_devices = int(match[1]), int(match[2])
    names = {name.lower(): name for name in GPUS}
    if match[3].lower() not in names:
        raise ValueError(f"machines has the GPU {match[3]!r}; it must be one of {', '.join(GPUS)}")
    if num_hosts > 1 and not match[4]:
        raise ValueError(f"machines is {text!r}; {num_hosts} machines need a network, such as ', 400 Gbit/s'")
    device, link = GPUS[names[match[3].lower()]]
    source = f"the text {text.strip()!r}; nominal rates"
    host = Host(
        name=f"{num_devices} {device.name}", device=device, num_devices=num_devices, device_link=link, source=source
    )
    join = rdma if (match[5] or "").upper() == "RDMA" else ethernet
    network = join(float(match[4]), source) if num_hosts > 1 else None
    storage = catalogue["gemini/16x-p4d"].storage
    return Topology(name=text.strip(), host=host, num_hosts=num_hosts, network=network, storage=storage, source=source)
