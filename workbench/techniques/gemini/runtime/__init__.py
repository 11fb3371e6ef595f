"""Gemini on real machines: state, replicas and tiers in memory, control plane, and training that restarts."""

import importlib

_ROOMS = {
    "agreement": ("RankMissing", "meet", "tell_all"),
    "checkpoints": ("CheckpointOptions", "CheckpointTimeout", "InMemoryCheckpoints"),
    "control.agent": ("ControlAgent", "LeaseBook", "Timing"),
    "control.events": ("Event", "EventName", "Fault", "Victim"),
    "control.store": ("EtcdKeyValueStore", "StoreUnavailable", "TcpKeyValueStore"),
    "idle": ("Interleaving", "measure_link"),
    "recovering": ("recover_",),
    "replicas": ("BufferState", "KeptShards", "Slot"),
    "state": ("StateMismatch", "TrainingState"),
    "storage": ("PersistentTier", "StorageCorrupt"),
    "traffic": ("TrafficWatch", "watch_traffic"),
    "training": ("Training", "TrainingOutcome", "run_training"),
    "transfer": ("Arriving", "Leaving", "ReplicaDamaged", "Route", "Transfer", "routes_of"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that an item can be listed, and an agent started, without all of torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
