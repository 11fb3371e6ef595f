"""Activation compression for model-parallel training.

Paper: "Does compressing activations help model parallel training?" (tables 1-16, figures 1-5).

Claim: of the usual ways to compress, only a learned linear code makes model-parallel training faster (up to 18 %)
and keeps its accuracy, because codes can be summed by the all-reduce that runs anyway and cost two matrix products.

Where to find it
- table 1, the methods, and their bytes: `method.METHODS`, `method.Method.message_bytes`
- section 3.2, the encoded all-reduce: `runtime.CompressedReduction`; ours, the same without full-size products for
  learned codes: `runtime.FusedReduction`
- section 3.3, the encoded boundary: `runtime.CompressedOutput` (one process), `workbench.parallel.pipeline` (ranks)
- section 4.7, FLOPs and seconds of a layer: `cost.layer_time`; bytes of an iteration: `cost.planned_messages`
- tables 2-4, 6, 7, 9, 12, seconds of an iteration on the paper's machines or on yours: `cost.iteration_time`
- section 4.7, equations 1 to 3, and table 10: `cost.layer_seconds_by_definition`, `cost.cluster_speedup`
- beyond the paper, where compression begins to pay: `cost.break_even_bytes_per_s`
- figure 2, singular values: `spectrum`; ours, what is left of a message and how far the loss travels: `reconstruction`
- tables 5, 8, 15, 16 and figure 4, scores after fine-tuning under compression, and measured times: `measured`

One line for your own model: `compressed = compress(model, TopK(0.05), layers=4)`, the last four blocks; after a forward
pass `compressed.report()` has the bytes saved.

Simplified: embedding, head and loss stay uncompressed and uncounted, as in the paper's layer model. In `cost` every
time is linear in a count, and each constant of the paper's machines comes from one or two cells of its tables. The
accuracy study fine-tunes a smaller encoder without dropout and with frozen word embeddings, in batches of sequences
of about the same length, so that messages hold little padding; the last checkpoint is scored, and one recipe a task
serves all methods. Q1 to Q3 scale each token, which is our variant; Q1f to Q3f scale each feature over batch and
sequence, as the code released by Wang et al. (2022), whose scheme the paper takes, does by default. Encoder gradients
that are summed in one message overlap with nothing.
Left out: pre-training from nothing (table 8 has a proxy); models of DTensor layers, whose reductions cannot be replaced
from outside (their outputs can be encoded); outputs that are no tensor and no tuple that begins with one.
"""

from __future__ import annotations

import importlib

__all__ = ["METHODS", "Setting", "compress", "iteration_time", "layer_time", "planned_messages"]

_HOMES = {"METHODS": "method", "compress": "runtime"} | dict.fromkeys(
    ("Setting", "iteration_time", "layer_time", "planned_messages"), "cost"
)


def __getattr__(name: str):
    # Lazy, so that a catalogue can be listed without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
