"""A training that outlives the loss of ranks, machines, the root and the store: it is started again with its numbers.

Each machine is an agent process and its ranks. Agents show by heartbeats in a key-value store that they live; one of
them, the elected root, has lost machines replaced and orders the next generation of ranks. What a rank goes on from is
the business of its function, which finds the memory of its machine as it left it.

    outcome = run_training(train, 4, args=(1000,))      # train(context, 1000) on four machines of one rank

On several hosts `run_under_torchrun` does the same, one machine on each.
"""

import importlib

_ROOMS = {
    "agent": ("ControlAgent", "LeaseBook", "Timing"),
    "hosts_of_torchrun": ("run_under_torchrun",),
    "service": ("Event", "EventName", "Fault", "RankContext", "Victim"),
    "store": ("EtcdKeyValueStore", "StoreUnavailable", "TcpKeyValueStore"),
    "training": ("Training", "TrainingOutcome", "run_training"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that an agent can be started without all of torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
