"""The machines of the papers by name, and their parts, each number with its source.

Peak rates of data sheets; a paper's own figure for a link replaces the vendor's. No paper states a latency: every link
marks its own as inferred, an order of magnitude.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from workbench.cluster.machines import GIGABIT_BYTES_PER_S, TCP_LATENCY_S, Device, Host, Link, Topology

__all__ = ["Catalogue", "catalogue"]

V100_SHEET = "NVIDIA Tesla V100 data sheet"
A100_SHEET = "NVIDIA A100 data sheet"

# Seconds before the first byte arrives, by kind of link; orders of magnitude.
NVLINK_LATENCY_S = 5e-6
PCIE_LATENCY_S = 10e-6
RDMA_LATENCY_S = 5e-6

# 16 lanes of 8 GT/s, of which 128 of 130 bits are data (PCI-SIG base specification 3.0).
PCIE_3_BYTES_PER_S = 16 * 8e9 * 128 / 130 / 8
GIBIBYTE_BYTES = 2**30


def _v100(name: str, memory_bytes: float, fp16_flops_per_s: float, fp32_flops_per_s: float) -> Device:
    return Device(
        name=name,
        memory_bytes=memory_bytes,
        fp16_flops_per_s=fp16_flops_per_s,
        fp32_flops_per_s=fp32_flops_per_s,
        memory_bytes_per_s=900e9,
        source=V100_SHEET,
    )


def _link(bandwidth_bytes_per_s: float, latency_s: float, source: str) -> Link:
    """Return a link with a bandwidth that `source` states and an inferred latency."""
    return Link(
        bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, source=source, inferred=("latency_s",)
    )


V100_SXM2_16GB = _v100("V100 SXM2 16 GB", 16e9, 125e12, 15.7e12)
V100_SXM2_32GB = _v100("V100 SXM2 32 GB", 32e9, 125e12, 15.7e12)
V100_PCIE_16GB = _v100("V100 PCIe 16 GB", 16e9, 112e12, 14e12)
V100_PCIE_32GB = _v100("V100 PCIe 32 GB", 32e9, 112e12, 14e12)
A100_40GB = Device(
    name="A100 40 GB",
    memory_bytes=40e9,
    fp16_flops_per_s=312e12,
    fp32_flops_per_s=19.5e12,
    memory_bytes_per_s=1555e9,
    source=f"{A100_SHEET}, SXM",
)

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


def ethernet(num_gigabits: float, source: str) -> Link:
    """Return a TCP/IP network of `num_gigabits` Gbit/s a host, as `source` states it."""
    return _link(num_gigabits * GIGABIT_BYTES_PER_S, TCP_LATENCY_S, source)


def rdma(num_gigabits: float, source: str) -> Link:
    """Return a network with remote direct memory access of `num_gigabits` Gbit/s a host, as `source` states it."""
    return _link(num_gigabits * GIGABIT_BYTES_PER_S, RDMA_LATENCY_S, source)


def _host_of_8(name: str, device: Device, link: Link, source: str, memory_bytes: float | None = None) -> Host:
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


def _activation_compression() -> Topology:
    paper = "activation-compression paper"
    p3 = Host(
        name="AWS p3.8xlarge",
        device=V100_SXM2_16GB,
        num_devices=4,
        device_link=_link(40e9, NVLINK_LATENCY_S, f"{paper}, section 4.4, text to table 7: 40 GB/s inside a node"),
        source=f"{paper}, section 4.1; 16 GB a device: AWS data sheet of the instance",
    )
    network = ethernet(10, f"{paper}, section 4.1: 10 Gbps between instances")
    return _cluster("activation-compression/4x-p3.8xlarge", p3, 4, network, f"{paper}, section 4.4, table 6")


def _flextp() -> Topology:
    stated = "FlexTP paper, section V-A (16 GB, 112 TFLOPS)"
    server = Host(
        name="server with 8 V100",
        device=replace(V100_PCIE_16GB, source=f"{stated}; the rest: {V100_SHEET}"),
        num_devices=8,
        device_link=PCIE_3,
        memory_bytes=180e9,
        source="FlexTP paper, section V-A",
    )
    return Topology(name="flextp/8x-v100", host=server, source=server.source)


def _zen() -> tuple[Topology, ...]:
    source = "thesis, section 3.4.1"
    v100 = _host_of_8("8 V100 32 GB with NVLink", V100_SXM2_32GB, NVLINK_2, source)
    a100 = _host_of_8("8 A100 40 GB with NVLink", A100_40GB, NVLINK_3, source)
    slow = ethernet(25, f"{source}: 25 Gbps with TCP/IP")
    fast = rdma(100, f"{source}: 100 Gbps with RDMA")
    return (
        _cluster("zen/16x-v100-25gbps", v100, 16, slow, source),
        _cluster("zen/16x-a100-100gbps", a100, 16, fast, source),
    )


def _espresso() -> tuple[Topology, ...]:
    source = "thesis, section 4.8.1"
    nvlink = _host_of_8("8 V100 32 GB with NVLink", V100_SXM2_32GB, NVLINK_2, source)
    pcie = _host_of_8("8 V100 32 GB, PCIe only", V100_PCIE_32GB, PCIE_3, source)
    fast = ethernet(100, f"{source}: 100 Gbps with TCP/IP")
    slow = ethernet(25, f"{source}: 25 Gbps")
    return (
        _cluster("espresso/8x-nvlink-100gbps", nvlink, 8, fast, source),
        _cluster("espresso/8x-pcie-25gbps", pcie, 8, slow, source),
    )


def _cupcake() -> tuple[Topology, ...]:
    server_source = "thesis, section 5.2.2 (and the first setup of section 5.4)"
    cluster_source = "thesis, section 5.4, second setup"
    server = _host_of_8("8 V100 32 GB over PCIe 3.0 x16", V100_PCIE_32GB, PCIE_3, server_source)
    nvlink = _host_of_8("8 V100 32 GB with NVLink", V100_SXM2_32GB, NVLINK_2, cluster_source)
    network = ethernet(25, f"{cluster_source}: 25 Gbps")
    return (
        Topology(name="cupcake/8x-v100-pcie", host=server, source=server_source),
        _cluster("cupcake/8x-v100-25gbps", nvlink, 8, network, cluster_source),
    )


def _gemini() -> tuple[Topology, ...]:
    source = "thesis, section 6.7.1"
    p4d_source = f"{source}, and table 6.1: 8 A100 40 GB with NVSwitch, 1152 GB"
    p3dn_source = f"{source}, and table 6.1: 8 V100 32 GB, 768 GB"
    p4d = _host_of_8("AWS p4d.24xlarge", A100_40GB, NVLINK_3, p4d_source, 1152 * GIBIBYTE_BYTES)
    p3dn = _host_of_8("AWS p3dn.24xlarge", V100_SXM2_32GB, NVLINK_2, p3dn_source, 768 * GIBIBYTE_BYTES)
    storage = ethernet(20, f"{source}: FSx, 20 Gbps aggregated over all instances")
    fast, slow = (rdma(gigabits, f"{source}: {gigabits} Gbps EFA") for gigabits in (400, 100))
    return (
        _cluster("gemini/16x-p4d", p4d, 16, fast, source, storage),
        _cluster("gemini/16x-p3dn", p3dn, 16, slow, source, storage),
    )


class Catalogue(dict[str, Topology]):
    """Topologies by name; a name is `paper/machine`."""

    def __missing__(self, name: str) -> Topology:
        raise ValueError(f"machine is {name!r}: it must be one of {', '.join(sorted(self))}")


catalogue: Mapping[str, Topology] = MappingProxyType(
    Catalogue(
        (machine.name, machine)
        for machine in (_activation_compression(), _flextp(), *_zen(), *_espresso(), *_cupcake(), *_gemini())
    )
)
