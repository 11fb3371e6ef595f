"""Links and a CPU's own work for messages, measured on real ranks that do nothing else; see `CpuMachines`."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from workbench.cluster import Link, Machines, fit
from workbench.parallel.hosts import ranks_a_core

from .method.job import FP32_BYTES, CpuMachines
from .method.options import Comm, Phase, Routine
from .runtime import Groups

__all__ = ["measure_cluster"]

MEASURED_ELEMENTS = (1024, 16_384, 131_072, 524_288)  # elements that a rank sends to each other rank
UNUSED_BYTES_PER_S = 1e12  # bandwidth of a link that nothing uses


def measure_cluster(num_machines: int, gpus_per_machine: int, *, device: str = "cpu", runs: int = 5) -> Machines:
    """Measure the links inside and between machines; all ranks call it and send at the same time.

    Ranks exchange messages of several sizes as they exchange gradients. Start-up and bandwidth are fitted to the median
    times of the slowest rank. Of ranks on CPUs the processor seconds are fitted, too: the mean of all ranks, times the
    ranks that share a core.

    Returns:
        the machines; `CpuMachines` if the device is a CPU.

    Raises:
        ValueError: if the number of ranks is not the number of GPUs.
    """
    groups = Groups(num_machines, gpus_per_machine, device)
    intra, intra_work = _fitted(groups, Phase.INTRA, gpus_per_machine, 1, device, runs)
    inter, inter_work = _fitted(groups, Phase.INTER, num_machines, gpus_per_machine, device, runs)
    groups.close()
    measured: dict[str, Any] = {"num_machines": num_machines, "gpus_per_machine": gpus_per_machine}
    measured |= {"intra": intra, "inter": inter}
    if device == "cpu":
        return CpuMachines(**measured, intra_work=intra_work, inter_work=inter_work)
    return Machines(**measured)


def _fitted(groups: Groups, phase: Phase, n: int, sharing: int, device: str, runs: int) -> tuple[Link, Link]:
    """Return the link of a phase, and the work of a rank's processor in the same form."""
    if n == 1:  # no other rank to send to
        return (Link(bandwidth_bytes_per_s=UNUSED_BYTES_PER_S, source="unused"),) * 2
    task, sharing_core = Comm(phase, Routine.REDUCE_SCATTER, False), ranks_a_core()
    sent_s, worked_s = [], []
    worker = ThreadPoolExecutor(1)  # as in the exchange of gradients, a thread of its own sends
    for size in MEASURED_ELEMENTS:
        value, seconds, worked = torch.zeros(size * n, device=device), [], []
        for _ in range(runs + 1):  # the first run opens connections
            dist.barrier()
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            worker.submit(groups.communicate, value, task, False, value.shape).result()
            if value.is_cuda:
                torch.cuda.synchronize(device)
            taken_s = torch.tensor(time.monotonic() - began_s, device=device)
            cpu_s = torch.tensor(time.process_time() - began_cpu_s, device=device)
            dist.all_reduce(taken_s, dist.ReduceOp.MAX)
            dist.all_reduce(cpu_s)
            seconds.append(taken_s.item())
            worked.append(cpu_s.item() / dist.get_world_size())
        sent_bytes = FP32_BYTES * size * (n - 1) * sharing
        sent_s.append((sent_bytes, median(seconds[1:])))
        worked_s.append((sent_bytes, sharing_core * median(worked[1:])))
    worker.shutdown()
    of = f"fitted to {len(sent_s)} sizes between {groups.place[0]} x {groups.place[1]} ranks"
    work = f"processor seconds at {sharing_core:g} ranks a core, {of}"
    return fit(sent_s).link(of), fit(worked_s).link(work)
