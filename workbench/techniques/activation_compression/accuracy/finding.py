"""The answer of the accuracy study in sentences: which method keeps accuracy at which ratio.

Source: section 4.3 of "Does compressing activations help model parallel training?": within 3 points a method preserves
accuracy.
Simplified: bytes are a mean over tasks, of messages alone.
Left out: the gradients of learned codes, which the figure shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from .scores import BASELINE, CLOSE_POINTS, PER_CENT

__all__ = ["told_per_byte"]

Rows = Sequence[Mapping[str, Any]]


def told_per_byte(rows: Iterable[Mapping[str, Any]], tasks: Collection[str]) -> str:
    """Say which methods preserve accuracy on every task and with every seed, and what the others keep.

    Args:
        rows: of `score_rows`.
        tasks: those that count.

    Returns:
        Two sentences, methods by the bytes that they send; empty where nothing was compressed.
    """
    counted = [row for row in rows if row.get("task") in tasks and row["method"] != BASELINE]
    shares, kept, lost = (_by_method(counted, name) for name in ("message_share", "relative_score", "points_lost"))
    methods = sorted(shares.keys() & kept.keys() & lost.keys(), key=lambda method: (fmean(shares[method]), method))
    if not methods:
        return ""
    preserve = [method for method in methods if max(lost[method]) <= CLOSE_POINTS]
    listed = _listed([f"{method} at {_mean(shares[method])}" for method in preserve])
    by = f"{listed} of the bytes" if preserve else "no method"
    others = [
        f"{method} ({_mean(shares[method])}) {_mean(kept[method])}" for method in methods if method not in preserve
    ]
    first = f"On {_listed(sorted(tasks))} at most {CLOSE_POINTS:g} points are lost, whatever the seed, by {by}."
    if not others:
        return first
    rest = ", ".join(others)
    return f"{first} Some seed of the others loses more; of the uncompressed score they keep on average: {rest}."


def _by_method(rows: Rows, quantity: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["quantity"] == quantity:
            found.setdefault(row["method"], []).append(row["value"])
    return found


def _mean(shares: Sequence[float]) -> str:
    return f"{PER_CENT * fmean(shares):.0f}\u00a0%"  # never broken over two lines


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
