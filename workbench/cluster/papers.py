"""The machines of the papers by name, and their parts, each number with its source.

Peak rates of data sheets; a paper's own figure for a link replaces the vendor's. No paper states a latency: every link
marks its own as inferred, an order of magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from workbench.cluster.machines import GIGABIT_BYTES_PER_S, TCP_LATENCY_S, Device, Host, Link, Topology, Wiring

__all__ = ["Catalogue", "catalogue"]

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
    """Return a link with a bandwidth that `source` states and an inferred latency."""
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


def _single(name: str, host: Host) -> Topology:
    return Topology(name=name, host=host, source=host.source)


def _activation_compression() -> tuple[Topology, ...]:
    paper = "activation-compression paper"
    nvlink = Link(
        bandwidth_bytes_per_s=40e9,
        latency_s=NVLINK_LATENCY_S,
        source=f"{paper}, section 4.4, text to table 7: 40 GB/s inside a node",
        inferred=("latency_s",),
    )
    p3 = Host(
        name="AWS p3.8xlarge",
        device=V100_SXM2_16GB,
        num_devices=4,
        device_link=nvlink,
        source=f"{paper}, section 4.1; 16 GB a device: AWS data sheet of the instance",
    )
    local = Host(
        name="local machine",
        device=V100_PCIE_16GB,
        num_devices=4,
        device_link=PCIE_3,
        wiring=Wiring.SHARED,
        memory_bytes=125e9,
        source=f"{paper}, section 4.1: 4 V100 without NVLink on a single PCIe bridge, 125 GB",
        inferred=("device", "device_link"),
    )
    network = ethernet(10, f"{paper}, section 4.1: 10 Gbps between instances")
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
        device=replace(V100_PCIE_16GB, source=f"{stated}; the rest: {V100_SHEET}"),
        num_devices=8,
        device_link=PCIE_3,
        memory_bytes=180e9,
        source="FlexTP paper, section V-A",
    )
    return (_single("flextp/8x-v100", server),)


def _atp() -> tuple[Topology, ...]:
    machine_a = Host(
        name="machine A",
        device=A100_80GB,
        num_devices=8,
        device_link=NVLINK_3,
        source="ATP paper, section 5 and figure 2(a): NVSwitch",
    )
    without_nvlink = replace(
        machine_a,
        name="machine A without NVLink",
        device_link=PCIE_4,
        source="ATP paper, section 5: NCCL_P2P_DISABLE=1; section 5.3 finds that all-reduce reaches far less "
        "(mesh (2,4): 1.20 and 4.95 GB/s; mesh (8,1): 0.97 GB/s)",
        inferred=("device_link",),
    )
    pair_link = Link(
        bandwidth_bytes_per_s=200e9,
        latency_s=NVLINK_LATENCY_S,
        source="ATP paper, section 3.4: 4 NVLinks of 50 GB/s join two devices",
        inferred=("bandwidth_bytes_per_s", "latency_s"),
    )
    machine_b = Host(
        name="machine B",
        device=A100_80GB,
        num_devices=8,
        device_link=PCIE_4,
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
        device=A100_80GB,
        num_devices=4,
        device_link=replace(NVLINK_3, source="ATP paper, figure 7(a): group bandwidth 600 GB/s both ways"),
        source="ATP paper, section 5 and figure 7(a)",
        inferred=("num_devices", "device"),
    )
    network = rdma(200, "ATP paper, section 5: 200 Gbps InfiniBand between nodes")
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
        device=A100_80GB,
        num_devices=8,
        device_link=NVLINK_3,
        source="ATP paper, section 5.4: all devices at one group bandwidth, whose value is left open; "
        "any power of two of devices in figure 12",
        inferred=("device", "device_link", "num_devices"),
    )
    torus_link = Link(
        bandwidth_bytes_per_s=25e9,
        latency_s=NVLINK_LATENCY_S,
        source="ATP paper, section 3.4: 25 GB/s a link, assumed there",
        inferred=("latency_s",),
    )
    torus = Host(
        name="2D torus",
        device=A100_80GB,
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
        device=A100_40GB,
        num_devices=8,
        device_link=NVLINK_3,
        source="SDPipe paper, section 5.1: 8 A100 a node",
        inferred=("device", "device_link"),
    )
    network = ethernet(10, "SDPipe paper, section 5.1: 10 Gb Ethernet")
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


GIBIBYTE_BYTES = 2**30


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


THESIS_MACHINES = (*_zen(), *_espresso(), *_cupcake(), *_gemini())


class Catalogue(Mapping):
    """Topologies by name; a name is `paper/machine`."""

    def __init__(self, topologies: tuple[Topology, ...]) -> None:
        by_name = {topology.name: topology for topology in topologies}
        if len(by_name) != len(topologies):
            raise ValueError("Catalogue.topologies: names must be unique")
        self._by_name = MappingProxyType(by_name)

    def __getitem__(self, name: str) -> Topology:
        try:
            return self._by_name[name]
        except KeyError:
            raise ValueError(f"machine is {name!r}: it must be one of {', '.join(self.names())}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._by_name))

    def of(self, paper: str) -> tuple[Topology, ...]:
        """Return the machines of one paper, such as "atp"."""
        machines = tuple(self._by_name[name] for name in self.names() if name.split("/")[0] == paper)
        if not machines:
            papers = sorted({name.split("/")[0] for name in self})
            raise ValueError(f"paper is {paper!r}: it must be one of {', '.join(papers)}")
        return machines


catalogue = Catalogue(PAPER_MACHINES + THESIS_MACHINES)
