"""The ways of checkpointing that the figures compare, by the names that figures write.

What: `policies` gives them for a job; `spread_row` turns the values of several seeds into one row.
Source: thesis, chapter 6 (Gemini), section 6.7.1 (baselines), section 6.7.3 (HighFreq every nine iterations).
Simplified: the text's nine iterations are kept beside the eight that its formula gives for its own numbers.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..method.waste import CheckpointPolicy, Job, gemini, high_frequency, strawman

__all__ = ["GEMINI", "HIGH_FREQUENCY", "HIGH_FREQUENCY_9", "STRAWMAN", "Rows", "policies", "spread_row"]

Rows = list[dict[str, Any]]

STRAWMAN, HIGH_FREQUENCY, HIGH_FREQUENCY_9, GEMINI = "Strawman", "HighFreq", "HighFreq, every 9", "Gemini"
ITERATIONS_IN_THE_TEXT = 9  # section 6.7.3; ceil(480 / 62) is 8


def policies(job: Job, *, as_in_the_text: bool = True) -> dict[str, CheckpointPolicy]:
    """Return the policies by name.

    Args:
        job: what is trained.
        as_in_the_text: also HighFreq with the nine iterations that the text says GPT-2 100B had.
    """
    nine = {HIGH_FREQUENCY_9: high_frequency(job, interval_iterations=ITERATIONS_IN_THE_TEXT)} if as_in_the_text else {}
    return {STRAWMAN: strawman(job), HIGH_FREQUENCY: high_frequency(job), **nine, GEMINI: gemini(job)}


def spread_row(quantity: str, values: Sequence[float], unit: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row: the mean over seeds, and the least and the most of them."""
    spread = {"low": min(values), "high": max(values)} if len(values) > 1 else {}
    return {"quantity": quantity, **keys, "value": fmean(values), "unit": unit, **spread}
