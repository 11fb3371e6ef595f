"""Placement, probabilities, interleaving and recovery on plain numbers; knows nothing of processes.

`placement` here is the function, not the module that it stands in: it is imported at once, after which the module's
own name no longer reaches the room. The rest is imported when it is asked for.
"""

from __future__ import annotations

import importlib

from .placement import (
    Placement,
    components,
    is_recoverable,
    kept_bytes,
    placement,
    replicas_kept,
    sent_bytes,
    survivors,
)

_HOMES = {
    "BestCheckpointing": "best",
    "BestPlacement": "optimal",
    "CheckpointPolicy": "waste",
    "CheckpointTraffic": "interleaving",
    "CheckpointingNeeds": "best",
    "Chunk": "partition",
    "Held": "recovery",
    "IdleProfile": "profiling",
    "Job": "waste",
    "Phase": "interleaving",
    "RecoveryEstimate": "estimate",
    "RecoveryPlan": "recovery",
    "Scheme": "interleaving",
    "TooTangled": "surviving",
    "average_wasted_s": "waste",
    "best_checkpointing": "best",
    "best_placement": "optimal",
    "estimate_recovery_probability": "estimate",
    "expected_waste": "best",
    "gap_bound": "probability",
    "gap_to_upper_bound": "probability",
    "group_bound": "probability",
    "interleave": "interleaving",
    "partition_checkpoint": "partition",
    "partition_checkpoint_by_definition": "partition",
    "plan_recovery": "recovery",
    "profile_idle_spans": "profiling",
    "rack_placement": "racks",
    "rack_recovery_probability": "racks",
    "racks_in_order": "racks",
    "recovery_probability": "probability",
    "recovery_probability_by_definition": "probability",
    "upper_bound": "probability",
    "wasted_time_s": "waste",
}

__all__ = [
    "Placement",
    "components",
    "is_recoverable",
    "kept_bytes",
    "placement",
    "replicas_kept",
    "sent_bytes",
    "survivors",
    *_HOMES,
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
