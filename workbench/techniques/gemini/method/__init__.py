"""Placement, probabilities, interleaving and recovery on plain numbers; knows nothing of processes.

`placement` here is the function, not its module: it is imported at once, and the rest when it is asked for.
"""

import importlib

from .placement import *  # noqa: F403
from .placement import __all__ as _of_placement
from .probability import __all__ as _of_probability

_ROOMS = {
    "best": ("BestCheckpointing", "CheckpointingNeeds", "best_checkpointing", "expected_waste"),
    "interleaving": ("CheckpointTraffic", "Phase", "Scheme", "interleave"),
    "partition": ("Chunk", "partition_checkpoint", "partition_checkpoint_by_definition"),
    "probability": _of_probability,
    "profiling": ("IdleProfile", "profile_idle_spans"),
    "recovery": ("Held", "RecoveryPlan", "Tier", "plan_recovery"),
    "surviving": ("TooTangled",),
    "waste": ("CheckpointPolicy", "Job", "average_wasted_s", "wasted_time_s"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [*_of_placement, *_HOMES]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
