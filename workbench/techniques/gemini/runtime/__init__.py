"""Gemini on real ranks: their state, replicas in memory, chunks on their way, and going back."""

import importlib

_ROOMS = {
    "checkpoints": ("CheckpointOptions", "CheckpointTimeout", "InMemoryCheckpoints"),
    "idle": ("Interleaving", "measure_link"),
    "recovering": ("recover_",),
    "replicas": ("BufferState", "KeptShards", "Slot"),
    "state": ("StateMismatch", "TrainingState"),
    "storage": ("PersistentTier", "StorageCorrupt"),
    "traffic": ("TrafficWatch", "watch_traffic"),
    "transfer": ("Arriving", "Leaving", "ReplicaDamaged", "Route", "Transfer", "routes_of"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that an item can be listed without all of torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
