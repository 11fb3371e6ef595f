"""The machines of the thesis' chapters on Zen, Espresso, Cupcake and Gemini.

What: one topology a testbed.
Source: the section or table that each object names; vendors' data sheets where it says so.
Simplified: what a chapter leaves open is marked as inferred.
Left out: CPUs, operating systems, software versions.
"""

from __future__ import annotations

from workbench.cluster import parts
from workbench.cluster.links import Link
from workbench.cluster.machines import Device, Host, Topology

__all__ = ["THESIS_MACHINES"]

GIBIBYTE_BYTES = 2**30


def _host(name: str, device: Device, link: Link, source: str, memory_bytes: float | None = None) -> Host:
    """Return a host with 8 devices, as all of the thesis have."""
    return Host(
        name=name,
        device=device,
        num_devices=8,
        device_link=link,
        memory_bytes=memory_bytes,
        source=source,
        inferred=("device_link",),
    )


def _cluster(
    name: str, host: Host, num_hosts: int, network: Link, source: str, storage: Link | None = None
) -> Topology:
    """Return hosts of one kind on one network."""
    return Topology(name=name, host=host, num_hosts=num_hosts, network=network, storage=storage, source=source)


def _zen() -> tuple[Topology, ...]:
    source = "thesis, section 3.4.1"
    v100 = _host("8 V100 32 GB with NVLink", parts.V100_SXM2_32GB, parts.NVLINK_2, source)
    a100 = _host("8 A100 40 GB with NVLink", parts.A100_40GB, parts.NVLINK_3, source)
    tcp = parts.ethernet(25, f"{source}: 25 Gbps with TCP/IP")
    rdma = parts.rdma(100, f"{source}: 100 Gbps with RDMA")
    return (
        _cluster("zen/16x-v100-25gbps", v100, 16, tcp, source),
        _cluster("zen/16x-a100-100gbps", a100, 16, rdma, source),
    )


def _espresso() -> tuple[Topology, ...]:
    source = "thesis, section 4.8.1"
    nvlink = _host("8 V100 32 GB with NVLink", parts.V100_SXM2_32GB, parts.NVLINK_2, source)
    pcie = _host("8 V100 32 GB, PCIe only", parts.V100_PCIE_32GB, parts.PCIE_3, source)
    fast = parts.ethernet(100, f"{source}: 100 Gbps with TCP/IP")
    slow = parts.ethernet(25, f"{source}: 25 Gbps")
    return (
        _cluster("espresso/8x-nvlink-100gbps", nvlink, 8, fast, source),
        _cluster("espresso/8x-pcie-25gbps", pcie, 8, slow, source),
    )


def _cupcake() -> tuple[Topology, ...]:
    server_source = "thesis, section 5.2.2 (and the first setup of section 5.4)"
    cluster_source = "thesis, section 5.4, second setup"
    server = _host("8 V100 32 GB over PCIe 3.0 x16", parts.V100_PCIE_32GB, parts.PCIE_3, server_source)
    nvlink = _host("8 V100 32 GB with NVLink", parts.V100_SXM2_32GB, parts.NVLINK_2, cluster_source)
    network = parts.ethernet(25, f"{cluster_source}: 25 Gbps")
    return (
        Topology(name="cupcake/8x-v100-pcie", host=server, source=server_source),
        _cluster("cupcake/8x-v100-25gbps", nvlink, 8, network, cluster_source),
    )


def _gemini() -> tuple[Topology, ...]:
    source = "thesis, section 6.7.1"
    p4d_source = f"{source}, and table 6.1: 8 A100 40 GB with NVSwitch, 1152 GB"
    p3dn_source = f"{source}, and table 6.1: 8 V100 32 GB, 768 GB"
    p4d = _host("AWS p4d.24xlarge", parts.A100_40GB, parts.NVLINK_3, p4d_source, 1152 * GIBIBYTE_BYTES)
    p3dn = _host("AWS p3dn.24xlarge", parts.V100_SXM2_32GB, parts.NVLINK_2, p3dn_source, 768 * GIBIBYTE_BYTES)
    storage = parts.ethernet(20, f"{source}: FSx, 20 Gbps aggregated over all instances")
    fast, slow = (parts.rdma(gigabits, f"{source}: {gigabits} Gbps EFA") for gigabits in (400, 100))
    return (
        _cluster("gemini/16x-p4d", p4d, 16, fast, source, storage),
        _cluster("gemini/16x-p3dn", p3dn, 16, slow, source, storage),
    )


THESIS_MACHINES = (*_zen(), *_espresso(), *_cupcake(), *_gemini())
