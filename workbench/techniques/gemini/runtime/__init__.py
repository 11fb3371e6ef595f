"""Gemini on real ranks: their state, replicas in memory, chunks on their way, and going back."""

import importlib

_ROOMS = {
    "checkpoints": ("CheckpointOptions", "CheckpointTimeout", "InMemoryCheckpoints"),
    "encoding": ("PackedTree", "pack_tree", "unpack_tree"),
    "replicas": ("KeptShards", "Slot", "recover_"),
    "state": ("StateMismatch", "TrainingState"),
    "storage": ("PersistentTier", "StorageCorrupt"),
    "transfer": (
        *("Interleaving", "ReplicaDamaged", "Route", "Shard", "TrafficWatch", "Transfer"),
        *("measure_link", "routes_of", "watch_traffic"),
    ),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that an item can be listed without all of torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
