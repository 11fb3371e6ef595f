"""The settings of the paper's timing tables, and what follows from them.

Source: "Does compressing activations help model parallel training?", section 4.1 and the captions of tables 2 to 4, 6,
7, 9 and 12.
Simplified, left out: nothing.

Units: elements, bytes, counts.
"""

from __future__ import annotations

from collections.abc import Callable

from .messages import ALL_REDUCES_PER_LAYER, BERT_VOCABULARY, Setting

__all__ = [
    "ALL_REDUCES",
    "ELEMENTS",
    "LAYERS",
    "LONG",
    "MESSAGES",
    "PRE",
    "PRE_MESSAGES",
    "PRE_MICRO_BATCHES",
    "PRE_STAGE_LAYERS",
    "SHORT",
    "Reader",
]

LONG = Setting()  # tables 2 to 4
SHORT = Setting(micro_batch=8, sequence=128)  # table 12
PRE = Setting(micro_batch=128, sequence=128, vocabulary=BERT_VOCABULARY)  # tables 6, 7 and 9, one micro-batch

LAYERS = LONG.layers
ELEMENTS = LONG.micro_batch * LONG.sequence * LONG.hidden  # of one activation in tables 2 to 4, and as many in PRE
MESSAGES = ALL_REDUCES_PER_LAYER * LONG.compressed_layers  # encoded forward, an iteration of tables 2 to 4 and 12
ALL_REDUCES = 2 * ALL_REDUCES_PER_LAYER * LAYERS  # both ways, likewise, without compression
PRE_STAGE_LAYERS, PRE_MICRO_BATCHES = 6, 8  # table 7: the last of 4 stages, whose layers are all encoded
PRE_MESSAGES = ALL_REDUCES_PER_LAYER * PRE_STAGE_LAYERS * PRE_MICRO_BATCHES

Reader = Callable[..., float]
"""Returns the seconds of one published cell: of a table, a column, a method, TP and PP."""
