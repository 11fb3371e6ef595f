"""Activation compression for model-parallel training.

Paper: "Does compressing activations help model parallel training?" (tables 1-16, figures 1-5).

Claim: of the usual ways to compress, only a learned linear code makes model-parallel training faster (up to 18 %)
and keeps its accuracy, because codes can be summed by the all-reduce that runs anyway and cost two matrix products.

Where to find it
- table 1, the methods, and their bytes: `method.METHODS`, `method.Method.message_bytes`
- section 3.2, the encoded all-reduce: `runtime.CompressedReduction`
- section 3.3, the encoded boundary: `runtime.CompressedOutput` (one process), `workbench.parallel.pipeline` (ranks)
- section 4.7, FLOPs and seconds of a layer: `cost.layer_time`; bytes of an iteration: `cost.planned_messages`
- figure 2, singular values: `spectrum`

One line for your own model: `compress(model, TopK(0.05), layers=4)`.

Simplified: embedding, head and loss stay uncompressed and uncounted, as in the paper's layer model.
Left out so far: measured iteration times (tables 2-4, 6, 7, 9, 12) and accuracy (tables 5, 8, 15, 16).
"""

from __future__ import annotations

import importlib

__all__ = ["METHODS", "Setting", "compress", "layer_time", "planned_messages"]

_HOMES = {"METHODS": "method", "compress": "runtime"} | dict.fromkeys(
    ("Setting", "layer_time", "planned_messages"), "cost"
)


def __getattr__(name: str):
    # Lazy, so that a catalogue can be listed without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
