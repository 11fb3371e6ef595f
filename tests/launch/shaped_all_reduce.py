"""Time all-reduces on shaped hosts; as a script, without root.

`python shaped_all_reduce.py MESSAGE_BYTES ENOUGH_S` drops root and prints the user, whether it took a user namespace,
and the seconds. It forks its ranks, because another user may not be allowed to read the interpreter's files.
"""

import ctypes
import os
import sys
import tempfile
import time
from functools import partial

import pyroute2  # noqa: F401
import torch
import torch.distributed as dist

from workbench.cluster import Link
from workbench.launch.hosts import HostNamespaces, ShapedHosts
from workbench.launch.processes import fork

NOBODY = 65534  # a user and a group without rights, on any Linux
PR_SET_DUMPABLE = 4  # <linux/prctl.h>
NUM_HOSTS = 4


def all_reduce_s(message_bytes: int, *, enough_s: float = 0.0, num_times: int = 30) -> list[float]:
    """Return the seconds of all-reduces, each from barrier to barrier, up to the first that is fast enough."""
    tensor, enough, times = torch.ones(message_bytes // 4), torch.zeros(1), []
    while not enough and len(times) < num_times:
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        dist.barrier()
        times.append(time.perf_counter() - start)
        enough.fill_(times[-1] <= enough_s)
        dist.broadcast(enough, 0)  # all ranks stop together
    return times


def drop_root() -> None:
    """Become nobody, with a /proc/self of its own as a process has that began so."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)


def live(rank: int, hosts: HostNamespaces, meeting: str, message_bytes: int, enough_s: float) -> int:
    hosts.enter(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = hosts.interface
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=NUM_HOSTS)
    times = all_reduce_s(message_bytes, enough_s=enough_s)
    if rank == 0:
        print(os.getuid(), hosts.description["user_namespace"], *times, flush=True)
    return 0


def main(message_bytes: int, enough_s: float) -> int:
    """Run all ranks; return 1 if one failed."""
    torch.set_num_threads(1)
    drop_root()
    with tempfile.TemporaryDirectory() as folder:
        hosts = ShapedHosts(NUM_HOSTS, link=Link.gigabit()).open()
        meeting = os.path.join(folder, "meeting")
        pids = [fork(partial(live, rank, hosts, meeting, message_bytes, enough_s)) for rank in range(NUM_HOSTS)]
        return int(any(os.waitpid(pid, 0)[1] for pid in pids))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
