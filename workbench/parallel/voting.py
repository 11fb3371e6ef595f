"""Training with torchft, an optional package: ranks vote on the participants before they average."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist

from workbench.launch.agreement import tell_all
from workbench.launch.tcp_store import listening_socket, serve_tcp_store

__all__ = ["Voting", "is_installed"]

QUORUM_TIMEOUT = timedelta(seconds=60)
JOIN_TIMEOUT_MS = 100  # wait of the lighthouse for more replicas
SHAPED = "10."  # beginning of the addresses of shaped hosts


def is_installed() -> bool:
    """Whether torchft can be imported."""
    return find_spec("torchft") is not None


class Voting:
    """torchft's manager of this rank, one replica among the ranks of a group; the first rank runs the lighthouse.

    The lighthouse and the store listen on loopback, or on the address of a shaped host. The managers of torchft
    listen on all interfaces and ask for no secret: the network must be trusted.

    Args:
        load, save: functions for the state that a late replica gets.
        group: the ranks that vote, None for all ranks; every rank of the group makes an object.
        options: options of `torchft.Manager`.
    """

    def __init__(
        self,
        load: Callable[[dict], None],
        save: Callable[[], dict],
        *,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ):
        os.environ["RUST_LOG"] = "error"  # or its servers write several lines a step
        import torchft
        from torchft.coordination import LighthouseServer

        rank, size, address = dist.get_rank(group), dist.get_world_size(group), _own_address()
        self._group, self._lighthouse = group, None
        if rank == 0:
            join = {"min_replicas": size, "join_timeout_ms": JOIN_TIMEOUT_MS}
            self._lighthouse = LighthouseServer(bind=f"{address}:0", **join)
        port = 0 if self._lighthouse is None else int(self._lighthouse.address().rsplit(":", 1)[1])
        root, port = tell_all([address, port], group)[0]
        self._store = serve_tcp_store(listening_socket(address))
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=QUORUM_TIMEOUT),
            min_replica_size=size,
            rank=0,
            world_size=1,
            load_state_dict=load,
            state_dict=save,
            store_addr=address,
            store_port=self._store.port,
            hostname=address,
            replica_id=f"replica-{rank}",
            lighthouse_addr=f"http://{root}:{port}",
            init_sync=False,
            timeout=QUORUM_TIMEOUT,
            **options,
        )

    def close(self) -> None:
        """Leave the quorum; every rank of the group calls it."""
        self.manager.shutdown(wait=False)
        dist.barrier(group=self._group)
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _own_address() -> str:
    """Return this host's address: on a shaped host the address that other hosts see, else that of loopback."""
    import psutil

    interfaces = psutil.net_if_addrs().values()
    addresses = [address.address for known in interfaces for address in known if address.family == socket.AF_INET]
    seen = [address for address in addresses if address.startswith(SHAPED)]
    return seen[0] if len(seen) == 1 else "127.0.0.1"
