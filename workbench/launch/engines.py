"""The same functions beyond one machine: on ranks that torchrun or srun has started, and on an ipyparallel cluster.

Such a cluster can be made by SSH, MPI or Slurm. Shaped hosts and the end of processes are left to these engines; `put`
and `start` an ipyparallel cluster has not.
"""

import atexit
import datetime
import gc
import io
import math
import os
import pickle
import re
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.launch.calls import own_part
from workbench.launch.environment import rank_environment
from workbench.launch.failures import GRACE_S, FailureKind, RankFailed, RankFailure, kind_of_words
from workbench.launch.messages import Handle

__all__ = ["IPyParallelRanks", "call_as_one", "join_job", "run_here", "run_on_all", "size_of_job"]

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SRUN_VARIABLES = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
FIRST_PORT, NUM_PORTS = 20_000, 10_000  # where the ranks of an srun meet, below the ports that systems give away
COMMAND_S = 20  # seconds a command of Slurm may take
POLL_S = 0.02  # seconds between two looks at the engines
JOIN_TIMEOUT_S = 1800.0  # in which engines must meet, and a peer must come to a collective, unless a limit is given
OUTPUT_PATIENCE_S = 5.0  # seconds that output may arrive after the result
BROKEN = "The process group is broken; restart the engines and make new IPyParallelRanks."
# Any address outside: no packet is sent, the system only tells which interface it would use.
OUTSIDE = ("192.0.2.1", 9)  # documentation range, RFC 5737


def run_here(function: Callable[..., Any], /, *args: Any, device: str = "cpu", **kwargs: Any) -> Any:
    """Call a function on this rank of a job that torchrun or srun started, and return this rank's value.

    The process group is initialised by the first call and ends with the process. Arguments are as in `Ranks.run`;
    `device` is "cpu" for gloo, "cuda" for nccl on this rank's GPU. RuntimeError if neither started this process.
    """
    join_job(device)
    return call_here(function, args, kwargs, {})


def size_of_job() -> int:
    """Return the number of ranks that torchrun or srun has started, of which this process is one; 0 for none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    num_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))  # not that of an allocation, nor of a batch script
    return num_tasks if num_tasks > 1 else 0


def run_on_all(function: Callable[..., Any], args: Sequence, kwargs: Mapping, kept: Mapping[str, Any]) -> list[Any]:
    """Call a function on this rank of a job as `call_as_one` does, and return the values of all ranks."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, call_as_one(function, args, kwargs, kept))
    return values


def call_as_one(function: Callable[..., Any], args: Sequence, kwargs: Mapping, kept: Mapping[str, Any]) -> Any:
    """Call a function on this rank of a job with rank 0's arguments, as a pool has those of its one caller.

    Each process has made its own: a plan that each has measured for itself would differ.
    """
    import cloudpickle
    import torch.distributed as dist

    class OfTheScript(cloudpickle.Pickler):
        def reducer_override(self, item: Any) -> Any:
            is_named = isinstance(item, type | types.FunctionType)
            if is_named and getattr(sys.modules["__main__"], item.__qualname__, None) is item:
                return NotImplemented  # by its name: every process has the script's
            return super().reducer_override(item)

    num_ranks, packed = dist.get_world_size(), io.BytesIO()
    parts = [own_part(rank, args, dict(kwargs), num_ranks) for rank in range(num_ranks)]
    if dist.get_rank() == 0:
        OfTheScript(packed).dump(parts)
    given = [packed.getvalue()]
    dist.broadcast_object_list(given)
    own_args, own_kwargs = pickle.loads(given[0])[dist.get_rank()]
    return call_here(function, own_args, own_kwargs, kept)


def call_here(function: Callable[..., Any], args: Sequence, kwargs: Mapping, kept: Mapping[str, Any]) -> Any:
    """Call a function with this rank's own arguments, a handle's being what is kept under its name."""
    import torch.distributed as dist

    own_args, own_kwargs = own_part(dist.get_rank(), args, dict(kwargs), dist.get_world_size())
    call_args = [kept[arg.name] if isinstance(arg, Handle) else arg for arg in own_args]
    call_kwargs = {name: kept[arg.name] if isinstance(arg, Handle) else arg for name, arg in own_kwargs.items()}
    return function(*call_args, **call_kwargs)


def join_job(device: str, num_threads: int = 1) -> None:
    """Initialise the process group of a job that torchrun or srun has started; it ends with the process."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    torch.set_num_threads(num_threads)
    if "TORCHELASTIC_RUN_ID" not in os.environ and size_of_job():
        os.environ.update({name: os.environ[of_slurm] for name, of_slurm in SRUN_VARIABLES.items()})
        os.environ.setdefault("MASTER_ADDR", _first_host(os.environ["SLURM_STEP_NODELIST"]))
        # Jobs of one node meet on ports of their own; the step tells several ones of a job apart.
        port = int(os.environ["SLURM_JOB_ID"]) * 7 + int(os.environ.get("SLURM_STEP_ID", 0))
        os.environ.setdefault("MASTER_PORT", str(FIRST_PORT + port % NUM_PORTS))
    missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
    if missing:
        raise RuntimeError(f"{missing[0]} is not set: run_here works under torchrun or srun; elsewhere use Ranks(...)")
    if device == "cuda":
        torch.cuda.set_device(_own_gpu(int(os.environ["LOCAL_RANK"])))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    atexit.register(_leave_job)


def _leave_job() -> None:
    """End all groups, also those that only a model no longer in use holds: their threads must not outlive Python."""
    import torch.distributed as dist

    dist.destroy_process_group()
    gc.collect()


def _own_gpu(local_rank: int) -> int:
    """Return the number of a rank's GPU; Slurm may show each rank its own one alone, as number 0."""
    import torch

    return local_rank % max(1, torch.cuda.device_count())


def _first_host(nodes: str) -> str:
    """Return the address of the first of Slurm's nodes, such as "gpu[07-09,12],login1"."""

    def show(*words: str) -> str:
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": COMMAND_S, "check": True}
        return subprocess.run(["scontrol", "show", *words], **options).stdout

    first = show("hostnames", nodes).split()[0]
    address = re.search(r"NodeAddr=(\S+)", show("node", first))  # most names can be looked up, too
    return address[1] if address else first


class IPyParallelRanks:
    """Ranks that are the engines of an ipyparallel cluster, one rank an engine; output is shown when a run ends.

    The client is an `ipyparallel.Client`, whose engines can import this package and find this machine at `address`.
    """

    def __init__(
        self,
        client: Any,
        *,
        address: str | None = None,
        device: str = "cpu",
        timeout_s: float | None = None,
        threads_per_rank: int = 1,
    ):
        from workbench.launch.tcp_store import listening_socket, serve_tcp_store

        self._client = client
        self._engines = [client[engine_id] for engine_id in client.ids]
        if not self._engines:
            raise ValueError("client has 0 engines; it must have at least 1")
        client[:].use_cloudpickle()
        self.num_ranks = len(self._engines)
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._broken = False
        hosts = client[:].apply_sync(socket.gethostname)
        address = address or _address_for({*hosts})
        self._store = serve_tcp_store(listening_socket(address))  # TCPStore itself would listen on all interfaces
        patience_s = JOIN_TIMEOUT_S if timeout_s is None else timeout_s
        place = (address, self._store.port, self.num_ranks, device, patience_s, threads_per_rank)
        local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        self._call_all([(_join_cluster, (*both, *place), {}) for both in enumerate(local_ranks)], patience_s)

    def run(
        self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every engine and wait for all; as `Ranks.run`, but RuntimeError after a failure."""
        if self._broken:
            raise RuntimeError(BROKEN)
        calls = [(function, *own_part(rank, args, kwargs, self.num_ranks)) for rank in range(self.num_ranks)]
        return self._call_all(calls, self._timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Leave the process group; the engines stay."""
        if not self._broken:
            self._broken = True
            self._client[:].apply_sync(_leave_cluster)

    def __enter__(self) -> "IPyParallelRanks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call_all(self, calls: Sequence[tuple[Callable[..., Any], Sequence, Mapping]], timeout_s: float) -> list[Any]:
        answers = [
            engine.apply_async(function, *args, **kwargs)
            for engine, (function, args, kwargs) in zip(self._engines, calls, strict=True)
        ]
        self._wait(answers, timeout_s)
        _show_output(answers)
        failures = list(filter(None, map(_failure_of, range(self.num_ranks), answers)))
        if failures:
            self._broken = True
            raise RankFailed(failures, BROKEN)
        return [answer.get() for answer in answers]

    def _wait(self, answers: Sequence[Any], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not all(answer.ready() for answer in answers):
            if any(answer.ready() and not answer.successful() for answer in answers):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            self._client.wait(answers, timeout=POLL_S)


def _address_for(host_names: set[str]) -> str:
    """Return this machine's address as engines on other machines, or all on this one, see it."""
    if host_names == {socket.gethostname()}:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(OUTSIDE)
        return probe.getsockname()[0]


def _join_cluster(
    rank: int,
    local_rank: int,
    address: str,
    port: int,
    num_ranks: int,
    device: str,
    timeout_s: float,
    threads_per_rank: int,
) -> None:
    import torch
    import torch.distributed as dist

    variables = rank_environment(threads_per_rank)
    if address != "127.0.0.1":
        del variables["GLOO_SOCKET_IFNAME"]  # engines on several machines: gloo finds it
    os.environ.update(variables)
    torch.set_num_threads(threads_per_rank)
    patience = datetime.timedelta(seconds=timeout_s)
    store = dist.TCPStore(address, port, is_master=False, timeout=patience)
    if device == "cuda":
        torch.cuda.set_device(_own_gpu(local_rank))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=patience)


def _leave_cluster() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def _show_output(answers: Sequence[Any]) -> None:
    for rank, answer in enumerate(answers):
        if answer.ready():
            answer.wait_for_output(OUTPUT_PATIENCE_S)  # it travels apart from the result
        for text, stream in ((answer.stdout, sys.stdout), (answer.stderr, sys.stderr)):
            for line in text.splitlines() if stream else ():  # a process may have none
                stream.write(f"[rank {rank}] {line}\n")


def _failure_of(rank: int, answer: Any) -> RankFailure | None:
    if not answer.ready():
        kind, message = FailureKind.SILENT, "did not answer in time"
        return RankFailure(rank=rank, kind=kind, time_s=time.time(), message=message)
    if answer.successful():
        return None
    error = answer.exception()
    return RankFailure(
        rank=rank,
        kind=kind_of_words(getattr(error, "evalue", str(error))),
        time_s=answer.metadata["completed"].timestamp(),
        message=f"raised {getattr(error, 'ename', type(error).__name__)}: {getattr(error, 'evalue', error)}",
        traceback=getattr(error, "traceback", "") or "",
    )
