"""Rows of tables 2.1, 6.1 and 6.2: checkpoints, memory and parameters.

Source: thesis, tables 2.1, 6.1, 6.2; sections 2.4, 6.2.3, 6.5.2 and 6.7.1.
Simplified: a gigabyte is 10⁹ bytes throughout; of memory, only ratios are compared, in which it cancels.
Left out: what the operating system, the data loader and the framework take of a machine's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..method.placement import BUFFERS_PER_REPLICA
from ..method.sizes import (
    BYTES_PER_PARAMETER,
    GPU_BYTES_PER_PARAMETER,
    TABLE_6_2,
    checkpoint_bytes,
    machine_shard_bytes,
    num_parameters,
)

__all__ = ["MACHINES", "PARAMETERS", "MachineMemory", "count_checkpoints", "count_memory", "count_parameters"]

GIGABYTE_BYTES = 10**9
STORAGE_BYTES_PER_S = 20e9 / 8
"""20 Gbps to remote persistent storage (section 2.4)."""

Rows = list[dict[str, object]]

PARAMETERS: Mapping[str, float] = MappingProxyType(
    {"Turing-NLG": 17.2e9, "GPT-3": 175e9, "OPT-175B": 175e9, "Gopher": 280e9, "MT-NLG": 530e9, "PaLM": 540e9}
)
"""Parameters of the models of table 2.1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineMemory:
    """A row of table 6.1.

    gpu_gigabytes: of one of its eight GPUs.
    cpu_gigabytes: of the machine.
    num_gpus: GPUs.
    """

    gpu_gigabytes: float
    cpu_gigabytes: float
    num_gpus: int = 8


MACHINES: Mapping[str, MachineMemory] = MappingProxyType(
    {
        "p3dn.24xlarge": MachineMemory(gpu_gigabytes=32, cpu_gigabytes=768),
        "p4d.24xlarge": MachineMemory(gpu_gigabytes=40, cpu_gigabytes=1152),
        "ND40rs_v2": MachineMemory(gpu_gigabytes=32, cpu_gigabytes=672),
        "ND96asr_v4": MachineMemory(gpu_gigabytes=40, cpu_gigabytes=900),
        "n1-8-v100": MachineMemory(gpu_gigabytes=32, cpu_gigabytes=624),
        "a2-highgpu-8g": MachineMemory(gpu_gigabytes=40, cpu_gigabytes=640),
        "DGX A100": MachineMemory(gpu_gigabytes=80, cpu_gigabytes=2000),
    }
)
"""The machines of table 6.1."""

LARGEST_MODEL = MappingProxyType({"p3dn.24xlarge": "GPT-2 40B", "p4d.24xlarge": "GPT-2 100B"})
"""The largest that each of the paper's two testbeds could train (section 6.7.2)."""


def count_checkpoints() -> Rows:
    """Return the size of every checkpoint of table 2.1, and what section 2.4 says of them."""
    rows = [
        _row("checkpoint_size", checkpoint_bytes(parameters) / GIGABYTE_BYTES, "GB", model=model)
        for model, parameters in PARAMETERS.items()
    ]
    first, last = PARAMETERS["Turing-NLG"], PARAMETERS["MT-NLG"]
    transfer_s = checkpoint_bytes(last) / STORAGE_BYTES_PER_S
    wasted_s = transfer_s + transfer_s / 2 + transfer_s  # Eq. 6.1 with checkpoints back to back
    pair = {"from": "Turing-NLG", "to": "MT-NLG"}
    return [
        *rows,
        _row("growth", last / first, "1", of="parameters", **pair),
        _row("growth", checkpoint_bytes(last) / checkpoint_bytes(first), "1", of="checkpoint", **pair),
        _row("time_to_storage", transfer_s / 60, "min", model="MT-NLG"),
        _row("recovery_overhead", wasted_s / 3600, "h", model="MT-NLG"),
    ]


def count_memory(num_machines: int, num_replicas: int) -> Rows:
    """Return the memory of every machine of table 6.1 beside what checkpoints take of it.

    Args:
        num_machines: N of the paper's testbeds.
        num_replicas: m.

    Returns:
        memory: of GPUs and CPU. memory_ratio: CPU over GPU. buffers: 2·m shards of the largest model of a testbed
        beside its memory. fullest_buffers: 2·m shards where model states fill the GPUs, for every machine.
    """
    num_buffers = BUFFERS_PER_REPLICA * num_replicas
    rows: Rows = []
    for name, machine in MACHINES.items():
        gpu_gigabytes = machine.num_gpus * machine.gpu_gigabytes
        fullest = gpu_gigabytes * BYTES_PER_PARAMETER / GPU_BYTES_PER_PARAMETER
        rows += [
            _row("memory", gpu_gigabytes, "GB", machine=name, memory="GPU"),
            _row("memory", machine.cpu_gigabytes, "GB", machine=name, memory="CPU"),
            _row("memory_ratio", machine.cpu_gigabytes / gpu_gigabytes, "1", machine=name),
            _row("fullest_buffers", num_buffers * fullest, "GB", machine=name, memory="needed"),
            _row("fullest_buffers", machine.cpu_gigabytes, "GB", machine=name, memory="there is"),
        ]
    for name, model in LARGEST_MODEL.items():
        shard = machine_shard_bytes(num_parameters(TABLE_6_2[model]), num_machines) / GIGABYTE_BYTES
        rows += [
            _row("buffers", num_buffers * shard, "GB", machine=name, memory="needed"),
            _row("buffers", MACHINES[name].cpu_gigabytes, "GB", machine=name, memory="there is"),
        ]
    return rows


def count_parameters(num_gpus: int) -> Rows:
    """Return the parameters of every model of table 6.2, and the largest one's checkpoint.

    Args:
        num_gpus: over which a checkpoint is shared out.

    Returns:
        parameters: counted. layers_for_name: how many layers of that width the name would take.
        checkpoint_per_gpu: of GPT-2 100B.
    """
    rows: Rows = []
    for name, sizes in TABLE_6_2.items():
        counted = num_parameters(sizes)
        named = float(name.split()[-1].removesuffix("B")) * 1e9
        layer = 12 * sizes.hidden_size**2 + 13 * sizes.hidden_size
        needed = (named - counted) / layer + sizes.num_layers
        rows += [_row("parameters", counted, "1", model=name), _row("layers_for_name", round(needed), "1", model=name)]
    shard = checkpoint_bytes(num_parameters(TABLE_6_2["GPT-2 100B"])) / num_gpus / GIGABYTE_BYTES
    return [*rows, _row("checkpoint_per_gpu", shard, "GB", model="GPT-2 100B")]


def _row(quantity: str, value: float, unit: str, **keys: object) -> dict[str, object]:
    return {"quantity": quantity, **keys, "value": value, "unit": unit}
