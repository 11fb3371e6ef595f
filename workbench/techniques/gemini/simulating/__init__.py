"""What failures cost, simulated on the paper's machines and beyond: rows for records and figures.

Source: thesis, chapter 6 (Gemini), sections 6.2, 6.7.2 and 6.7.3.
Simplified, left out: see each module.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "Cause": "training",
    "GPT2_100B": "setting",
    "MT_NLG": "setting",
    "Overheads": "setting",
    "PAPER_OVERHEADS": "setting",
    "Setting": "setting",
    "Span": "training",
    "TrainingRun": "training",
    "simulate_training": "training",
    "simulate_training_by_definition": "training",
    "training_timeline": "timeline",
}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that the simulator does not import what draws.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
