"""The lesson on in-memory checkpoints, imported part by part: a puzzle needs neither ranks nor the simulator."""

from __future__ import annotations

import importlib

_HOMES = {
    "exercises": (
        "check_holders",
        "check_sources",
        "fatal_pairs_of_ring",
        "holders_of_shard",
        "lost_shards",
        "memory_for_replicas",
        "plan_after",
        "probability_of_four_lost",
        "resumed_from",
        "seconds_wasted",
    ),
    "explorers": ("compare_failures", "compare_schemes", "explore_failures", "explore_interleaving"),
    "placement": ("Puzzle", "explore_placement", "solve"),
    "training": ("LiveLog", "PRELOAD", "SmallTraining", "in_words"),
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str):
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
