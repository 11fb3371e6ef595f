"""The control plane: who is alive, who is the root, and which machines train in which generation.

Source: thesis, section 6.3.2 (worker agents, root agent, key-value store, cloud operator) and section 6.6 (replacement
that keeps the rank number, standby machines).

- `store`: the contract of a key-value store; `tcp_store` (torch's, embedded) and `etcd_store` keep it.
- `leases`: who is alive, judged by a growing counter and the watcher's own clock.
- `election`: who is the root; `ordering`: what the root orders. Both are pure.
- `member`: an agent's control loop, one step at a time, without processes.
- `service`: the same in a machine of `workbench.launch.machines`, which starts and stops ranks.

Everything in the store is soft state: who wrote it writes it again when it is gone.
"""

import importlib

__all__ = [
    "ControlAgent",
    "EtcdKeyValueStore",
    "KeyValueStore",
    "LeaseBook",
    "MemoryKeyValueStore",
    "Order",
    "StoreUnavailable",
    "TcpKeyValueStore",
    "Timing",
    "decide",
    "election_step",
    "wait_for_keys",
]

_HOMES = {
    "ControlAgent": "member",
    "EtcdKeyValueStore": "etcd_store",
    "KeyValueStore": "store",
    "LeaseBook": "leases",
    "MemoryKeyValueStore": "store",
    "Order": "records",
    "StoreUnavailable": "store",
    "TcpKeyValueStore": "tcp_store",
    "Timing": "member",
    "decide": "ordering",
    "election_step": "election",
    "wait_for_keys": "store",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
