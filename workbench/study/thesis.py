"""The clusters and codecs of the thesis on Espresso and Cupcake, with constants that its authors released.

Source: the networks of chapters 4 and 5, and `datasets.gradient_traces`, whose readers raise DataError without files.
"""

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from workbench.cluster.machines import Link, Machines
from workbench.cluster.papers import catalogue
from workbench.compression.costs import CodecTimes, Processor, interpolated
from workbench.datasets import gradient_traces
from workbench.timeline.gradients import Gradients

__all__ = ["GPUS_PER_MACHINE", "TESTBEDS", "paper_codec", "paper_machines", "scaled"]

TESTBEDS = MappingProxyType(
    {
        "nvlink": ("espresso/8x-nvlink-100gbps", "intra_nvlink"),
        "pcie": ("espresso/8x-pcie-25gbps", "intra_pcie"),
        "server": ("cupcake/8x-v100-pcie", "intra_pcie"),
        "cluster": ("cupcake/8x-v100-25gbps", "intra_nvlink"),
    }
)
"""By short name: a topology of `cluster.papers`, and the release's constant for its links inside machines."""

GPUS_PER_MACHINE = 8
FP32_BYTES = 4


def paper_codec(algorithm: str) -> CodecTimes:
    """Return the authors' codec times: constant up to 2^20 elements on a GPU, by size on a CPU.

    Their planner counts one decoding after a communication, however many messages it adds up, as section 4.3.1 counts
    operations.
    """
    on_gpu = gradient_traces.gpu_compression_constants()[algorithm, "one_level"]
    on_cpu, constants = gradient_traces.cpu_compression_times()[algorithm], gradient_traces.communication_constants()
    is_sparse = algorithm in ("randomk", "dgc")
    ratio = constants["wire_ratio_sparsification" if is_sparse else "wire_ratio_one_bit"]
    base, sizes = constants["compression_base_elements"], on_cpu.num_elements

    def level(seconds: float):
        return lambda elements: seconds * np.maximum(1.0, elements / base)

    return CodecTimes(
        name=algorithm,
        encode_s={Processor.GPU: level(on_gpu.encode_s), Processor.CPU: interpolated(sizes, on_cpu.compress_s)},
        decode_s={Processor.GPU: level(on_gpu.decode_s), Processor.CPU: interpolated(sizes, on_cpu.decompress_s)},
        sent_bytes=FP32_BYTES * ratio,
        decodes_at_once=True,
    )


def paper_machines(testbed: str, num_gpus: int) -> Machines:
    """Return machines of a testbed, with start-up and links inside as in the authors' planner, on nominal networks."""
    name, constant = TESTBEDS[testbed]
    topology, constants = catalogue[name], gradient_traces.communication_constants()
    nominal = topology.host.device_link
    latency_s = nominal.latency_s if topology.network else constants["startup"]
    intra = Link(bandwidth_bytes_per_s=1 / constants[constant], latency_s=latency_s)
    network = topology.network or nominal
    inter = Link(bandwidth_bytes_per_s=network.bandwidth_bytes_per_s, latency_s=constants["startup"])
    num_machines = num_gpus // GPUS_PER_MACHINE
    return Machines(num_machines=num_machines, gpus_per_machine=GPUS_PER_MACHINE, intra=intra, inter=inter)


def scaled(gradients: Gradients, scale: float) -> Gradients:
    """Return gradients with all computing times multiplied by a factor."""
    return replace(
        gradients,
        forward_s=gradients.forward_s * scale,
        gap_s=tuple(gap_s * scale for gap_s in gradients.gap_s),
        source=f"{gradients.source}, times scaled by {scale:.2f}",
    )
