"""The machines of the activation-compression, FlexTP, ATP and SDPipe papers.

What: one topology a setup that a paper ran on or analysed.
Source: the section, table or figure that each object names; vendors' data sheets where it says so.
Simplified: a paper's own figure for a link replaces the vendor's; what a paper leaves open is marked as inferred.
Left out: CPUs, operating systems, software versions.
"""

from __future__ import annotations

from dataclasses import replace

from workbench.cluster import parts
from workbench.cluster.links import Link
from workbench.cluster.machines import Host, Topology, Wiring

__all__ = ["PAPER_MACHINES"]


def _single(name: str, host: Host) -> Topology:
    return Topology(name=name, host=host, source=host.source)


def _activation_compression() -> tuple[Topology, ...]:
    paper = "activation-compression paper"
    nvlink = Link(
        bandwidth_bytes_per_s=40e9,
        latency_s=parts.NVLINK_LATENCY_S,
        source=f"{paper}, section 4.4, text to table 7: 40 GB/s inside a node",
        inferred=("latency_s",),
    )
    p3 = Host(
        name="AWS p3.8xlarge",
        device=parts.V100_SXM2_16GB,
        num_devices=4,
        device_link=nvlink,
        source=f"{paper}, section 4.1; 16 GB a device: AWS data sheet of the instance",
    )
    local = Host(
        name="local machine",
        device=parts.V100_PCIE_16GB,
        num_devices=4,
        device_link=parts.PCIE_3,
        wiring=Wiring.SHARED,
        memory_bytes=125e9,
        source=f"{paper}, section 4.1: 4 V100 without NVLink on a single PCIe bridge, 125 GB",
        inferred=("device", "device_link"),
    )
    network = parts.ethernet(10, f"{paper}, section 4.1: 10 Gbps between instances")
    cluster = Topology(
        name="activation-compression/4x-p3.8xlarge",
        host=p3,
        num_hosts=4,
        network=network,
        source=f"{paper}, section 4.4, table 6",
    )
    return (_single("activation-compression/p3.8xlarge", p3), _single("activation-compression/local", local), cluster)


def _flextp() -> tuple[Topology, ...]:
    stated = "FlexTP paper, section V-A (16 GB, 112 TFLOPS)"
    server = Host(
        name="server with 8 V100",
        device=replace(parts.V100_PCIE_16GB, source=f"{stated}; the rest: {parts.V100_SHEET}"),
        num_devices=8,
        device_link=parts.PCIE_3,
        memory_bytes=180e9,
        source="FlexTP paper, section V-A",
    )
    return (_single("flextp/8x-v100", server),)


def _atp() -> tuple[Topology, ...]:
    machine_a = Host(
        name="machine A",
        device=parts.A100_80GB,
        num_devices=8,
        device_link=parts.NVLINK_3,
        source="ATP paper, section 5 and figure 2(a): NVSwitch",
    )
    without_nvlink = replace(
        machine_a,
        name="machine A without NVLink",
        device_link=parts.PCIE_4,
        source="ATP paper, section 5: NCCL_P2P_DISABLE=1; section 5.3 finds that all-reduce reaches far less "
        "(mesh (2,4): 1.20 and 4.95 GB/s; mesh (8,1): 0.97 GB/s)",
        inferred=("device_link",),
    )
    pair_link = Link(
        bandwidth_bytes_per_s=200e9,
        latency_s=parts.NVLINK_LATENCY_S,
        source="ATP paper, section 3.4: 4 NVLinks of 50 GB/s join two devices",
        inferred=("bandwidth_bytes_per_s", "latency_s"),
    )
    machine_b = Host(
        name="machine B",
        device=parts.A100_80GB,
        num_devices=8,
        device_link=parts.PCIE_4,
        island_size=2,
        island_link=pair_link,
        source="ATP paper, section 5 and figure 2(b): NVLink joins pairs",
        inferred=("device_link",),
    )
    return (
        _single("atp/ic1", without_nvlink),
        _single("atp/ic2", machine_b),
        _single("atp/ic3", machine_a),
        _atp_cluster_c(),
        *_atp_analysed(),
    )


def _atp_cluster_c() -> Topology:
    node = Host(
        name="node of cluster C",
        device=parts.A100_80GB,
        num_devices=4,
        device_link=replace(parts.NVLINK_3, source="ATP paper, figure 7(a): group bandwidth 600 GB/s both ways"),
        source="ATP paper, section 5 and figure 7(a)",
        inferred=("num_devices", "device"),
    )
    network = parts.rdma(200, "ATP paper, section 5: 200 Gbps InfiniBand between nodes")
    return Topology(
        name="atp/ic4",
        host=node,
        num_hosts=4,
        network=network,
        source="ATP paper, section 5, cluster C; 16 devices in figure 11, 4 to a node in figure 7(a)",
        inferred=("num_hosts",),
    )


def _atp_analysed() -> tuple[Topology, ...]:
    """Return the two machines that the paper analyses without having them."""
    switched = Host(
        name="NVLink-Network Switch",
        device=parts.A100_80GB,
        num_devices=8,
        device_link=parts.NVLINK_3,
        source="ATP paper, section 5.4: all devices at one group bandwidth, whose value is left open; "
        "any power of two of devices in figure 12",
        inferred=("device", "device_link", "num_devices"),
    )
    torus_link = Link(
        bandwidth_bytes_per_s=25e9,
        latency_s=parts.NVLINK_LATENCY_S,
        source="ATP paper, section 3.4: 25 GB/s a link, assumed there",
        inferred=("latency_s",),
    )
    torus = Host(
        name="2D torus",
        device=parts.A100_80GB,
        num_devices=16,
        device_link=torus_link,
        wiring=Wiring.TORUS_2D,
        source="ATP paper, figure 7(b): 4 x 4 devices",
        inferred=("device",),
    )
    return (_single("atp/ic5", switched), _single("atp/ic6", torus))


def _sdpipe() -> tuple[Topology, ...]:
    node = Host(
        name="node with 8 A100",
        device=parts.A100_40GB,
        num_devices=8,
        device_link=parts.NVLINK_3,
        source="SDPipe paper, section 5.1: 8 A100 a node",
        inferred=("device", "device_link"),
    )
    network = parts.ethernet(10, "SDPipe paper, section 5.1: 10 Gb Ethernet")
    shape = {"host": node, "network": network, "inferred": ("num_hosts",)}
    return (
        Topology(
            name="sdpipe/16-workers",
            num_hosts=2,
            source="SDPipe paper, section 5.3: 4 x 4 workers, one a device",
            **shape,
        ),
        Topology(
            name="sdpipe/64-workers",
            num_hosts=8,
            source="SDPipe paper, section 5.4: 16 x 4 workers, one a device",
            **shape,
        ),
    )


PAPER_MACHINES = (*_activation_compression(), *_flextp(), *_atp(), *_sdpipe())
