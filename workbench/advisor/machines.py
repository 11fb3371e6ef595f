"""The machines of a question: a line of text, a file that changes links of one, or measured on running ranks."""

import os
import platform
import time
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from workbench.checks import require_not_negative, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Device, Host, Link, Topology, preset
from workbench.cluster.presets import GPUS
from workbench.launch import run_on_ranks
from workbench.launch.backends import backend_of
from workbench.launch.engines import size_of_job
from workbench.parallel.links import fitted_ring
from workbench.parallel.timeouts import init_mesh

__all__ = ["MEASURED", "machines_of"]

MEASURED = "measured"
SIZES_BYTES = (2**16, 2**20, 2**23)  # of the all-reduces that start-ups and rates are fitted to
WIDTH = {"cpu": 512, "cuda": 8192}  # of the square matrices whose product is timed
COPIED_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}
RUNS = 5  # timed runs of a product or a copy; the fastest counts
STORAGE = preset("1x1 H100").storage  # of Gemini's paper; what a run of seconds cannot measure
LINKS = ("device_link", "network", "storage")  # tables of a file
KEYS = ("gbit_per_s", "latency_us")  # of a table


def machines_of(text: str) -> Topology:
    """Return the machines that a text describes: as `preset` reads it, "measured", or a file's path ending in .toml.

    A file has `machines`, such as "8x8 H100, 400 Gbit/s", and a table with `gbit_per_s` and `latency_us` for each link
    that differs: device_link, network or storage. "measured" measures between all ranks of a job of torchrun or srun,
    or of the process group that is initialised; else between all GPUs of this machine, of which it must have two.

    Raises:
        ValueError: names the part of the text or of the file that is wrong, or says what "measured" lacks.
    """
    text = text.strip()
    if text.endswith(".toml"):
        return _from_file(Path(text))
    return _measured() if text == MEASURED else preset(text)


def _from_file(path: Path) -> Topology:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"machines names {path}, which cannot be read: {error}") from None
    if not isinstance(tables.get("machines"), str):
        raise ValueError(f"{path} has no `machines`; it must be such as machines = '8x8 H100, 400 Gbit/s'")
    if unknown := sorted(set(tables) - {"machines", *LINKS}):
        raise ValueError(f"{path} has {unknown[0]!r}; it must be one of machines, {', '.join(LINKS)}")
    base = preset(tables["machines"])
    given = {name: _link(tables[name], f"{path}: {name}") for name in LINKS if name in tables}
    if "network" in given and base.num_hosts == 1:
        raise ValueError(f"{path} has a network, but {base.name!r} is one machine")
    return replace(
        base,
        name=f"{base.name} with links of {path.name}",
        host=replace(base.host, device_link=given.get("device_link", base.host.device_link)),
        network=given.get("network", base.network),
        storage=given.get("storage", base.storage),
    )


def _link(table: Any, where: str) -> Link:
    if not isinstance(table, Mapping) or set(table) != set(KEYS):
        raise ValueError(f"{where} must have {' and '.join(KEYS)}, and nothing else")
    try:
        require_positive(gbit_per_s=table["gbit_per_s"])
        require_not_negative(latency_us=table["latency_us"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    rate = table["gbit_per_s"] * GIGABIT_BYTES_PER_S
    return Link(bandwidth_bytes_per_s=rate, latency_s=table["latency_us"] / 1e6, source=where)


def _measured() -> Topology:
    if dist.is_initialized():
        return _measure()
    num_ranks = size_of_job() or torch.cuda.device_count()
    if num_ranks < 2:
        raise ValueError(
            f"machines is {MEASURED!r}, but there is nothing to measure between: {num_ranks} GPUs here, and no job. "
            f"Start one: torchrun --nproc-per-node 8 --no-python workbench advise MODEL --machines {MEASURED}"
        )
    has_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # one for each rank here
    return run_on_ranks(_measure, num_ranks, device="cuda" if has_gpus else "cpu")[0]


def _measure() -> Topology:
    """Measure the links and the device of the ranks; every rank calls it, and has what rank 0 measured."""
    device = "cuda" if torch.cuda.is_available() and backend_of("cuda") == "nccl" else "cpu"
    num_hosts, inside = _hosts()
    mesh = init_mesh(device, (num_hosts, inside))
    source = "measured by all-reduces of the running ranks"
    network, near = (
        fitted_ring(mesh.get_group(axis), SIZES_BYTES, device).link(source) if mesh.size(axis) > 1 else None
        for axis in (0, 1)
    )
    for group in {mesh.get_group(axis) for axis in (0, 1)} - {dist.group.WORLD}:
        dist.destroy_process_group(group)
    if network is not None:  # all ranks of a machine have used its link at the same time
        network = replace(network, bandwidth_bytes_per_s=inside * network.bandwidth_bytes_per_s)
    rank_device, usual = _device(device, inside)
    device_link = near or usual or network
    if device_link is None:
        raise ValueError(f"machines is {MEASURED!r}, with one rank; links are measured between at least 2")
    host = Host(
        name=f"{inside} {rank_device.name}",
        device=rank_device,
        num_devices=inside,
        device_link=device_link,
        memory_bytes=psutil.virtual_memory().total,
        source=source,
    )
    links = ((near, "inside a machine"), (network, "between machines"))
    said = [f"{link.bandwidth_bytes_per_s / GIGABIT_BYTES_PER_S:.3g} Gbit/s {where}" for link, where in links if link]
    name = f"{num_hosts}x{inside} {rank_device.name}, measured: {', '.join(said)}"
    measured = [Topology(name=name, host=host, num_hosts=num_hosts, network=network, storage=STORAGE, source=source)]
    dist.broadcast_object_list(measured, device=torch.device(device))
    return measured[0]


def _hosts() -> tuple[int, int]:
    """Return the number of machines of the ranks, and of ranks on each; ranks of a machine follow one another."""
    names = [""] * dist.get_world_size()
    network = "/proc/self/ns/net"  # shaped hosts are network namespaces of one machine
    host_name = f"{platform.node()} {os.readlink(network) if os.path.exists(network) else ''}"
    dist.all_gather_object(names, host_name)
    num_hosts = len(set(names))
    inside = len(names) // num_hosts
    if any(name != names[rank // inside * inside] for rank, name in enumerate(names)) or len(names) % num_hosts:
        raise ValueError(
            f"machines is {MEASURED!r}: {len(names)} ranks on {num_hosts} machines; each must have the same number, "
            "with consecutive ranks"
        )
    return num_hosts, inside


def _device(device: str, inside: int) -> tuple[Device, Link | None]:
    """Return this rank's device, by its data sheet where it is known, and the usual link to its neighbours."""
    if device == "cuda":
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        name, memory_bytes = about.name, about.total_memory
        for known in sorted(GPUS, key=len, reverse=True):  # V100-PCIe before V100
            if known.lower() in name.lower():
                gpu, link = GPUS[known]
                return replace(gpu, memory_bytes=memory_bytes), link
    else:
        name, memory_bytes = "CPU rank", psutil.virtual_memory().total / inside
    copied = torch.zeros(COPIED_BYTES[device] // 4, device=device)
    measured = Device(
        name=name,
        memory_bytes=memory_bytes,
        fp16_flops_per_s=_flops_per_s(torch.bfloat16, device),
        fp32_flops_per_s=_flops_per_s(torch.float32, device),
        memory_bytes_per_s=2 * copied.nbytes / _fastest_s(copied.clone, device),  # read and written
        source="measured: a product of square matrices, and a copy",
    )
    return measured, None


def _flops_per_s(dtype: torch.dtype, device: str) -> float:
    x = torch.ones(WIDTH[device], WIDTH[device], dtype=dtype, device=device)
    return 2 * len(x) ** 3 / _fastest_s(lambda: x @ x, device)


def _fastest_s(work: Any, device: str) -> float:
    seconds = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began_s)
    return min(seconds)
