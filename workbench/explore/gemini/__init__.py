"""What the lesson on in-memory checkpoints shows: puzzles, controls, a training to kill, its log, pictures, exercises.

Imported when it is asked for: a puzzle needs no ranks, and an item that draws a placement no simulator.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "LiveLog": "live_log",
    "PRELOAD": "own_loop",
    "Puzzle": "placement_puzzle",
    "SmallTraining": "own_loop",
    "explore_failures": "failures_explorer",
    "explore_interleaving": "interleaving_explorer",
    "explore_placement": "placement_puzzle",
    "fatal_pairs_of_ring": "exercises",
    "holders_of_shard": "exercises",
    "lost_shards": "exercises",
    "memory_for_replicas": "exercises",
    "partner_in_another_rack": "exercises",
    "plan_after": "tiers",
    "probability_of_four_lost": "exercises",
    "resumed_from": "exercises",
    "seconds_wasted": "exercises",
    "solve": "placement_puzzle",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
