"""torchft's way to outlive failures, to compare with: replicas of a model agree on every step and keep no checkpoint.

What: `VotingReplicas` wraps one rank's model and optimizer as torchft's documentation does for plain data parallelism.
Before each step the replicas that are alive form a quorum, after the backward pass they vote on whether to update; a
replica that comes back copies the state of another one.
Source: torchft (the package `torchft`, not installed by default); Gemini's thesis does not know it.
Simplified: one rank a replica, all on this machine; nothing is lost while it is timed.
Left out: sharded state within a replica.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import nn

from ..runtime.agreement import tell_all

__all__ = ["VotingReplicas", "is_installed"]

TIMEOUT = timedelta(seconds=60)
JOIN_TIMEOUT_MS = 100  # in which the lighthouse waits for more replicas
SHAPED = "10."  # how addresses of shaped hosts begin


def is_installed() -> bool:
    """Whether torchft can be imported."""
    return find_spec("torchft") is not None


class VotingReplicas:
    """One replica; every rank of the default group makes one.

    Args:
        model: plain, the same on all ranks.
        optimizer: of its parameters.

    Attributes:
        model, optimizer: to train with in place of them.

    Raises:
        ModuleNotFoundError: if torchft is not installed.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        os.environ["RUST_LOG"] = "error"  # or its servers write several lines a step
        import torchft
        from torchft.coordination import LighthouseServer

        rank, world_size, address = dist.get_rank(), dist.get_world_size(), _own_address()
        self._lighthouse = None
        if rank == 0:
            join = {"min_replicas": world_size, "join_timeout_ms": JOIN_TIMEOUT_MS}
            self._lighthouse = LighthouseServer(bind="0.0.0.0:0", **join)
        port = 0 if self._lighthouse is None else int(self._lighthouse.address().rsplit(":", 1)[1])
        root, port = tell_all([address, port])[0]
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=TIMEOUT),
            min_replica_size=world_size,
            rank=0,
            world_size=1,
            load_state_dict=lambda state: _load_(model, optimizer, state),
            state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            store_addr=address,
            store_port=self._store.port,
            hostname=address,
            replica_id=f"replica-{rank}",
            lighthouse_addr=f"http://{root}:{port}",
            init_sync=False,
            timeout=TIMEOUT,
        )
        self.model = torchft.DistributedDataParallel(self._manager, model)
        self.optimizer = torchft.Optimizer(self._manager, optimizer)
        self.optimizer.zero_grad()  # which asks for the first quorum

    def close(self) -> None:
        """Leave the quorum; every rank calls it."""
        self._manager.shutdown(wait=False)
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _load_(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def _own_address() -> str:
    """Return this host's address: on a shaped host the one that others see, else loopback's."""
    import psutil

    seen = [
        one.address
        for several in psutil.net_if_addrs().values()
        for one in several
        if one.family == socket.AF_INET and one.address.startswith(SHAPED)
    ]
    return seen[0] if len(seen) == 1 else "127.0.0.1"
