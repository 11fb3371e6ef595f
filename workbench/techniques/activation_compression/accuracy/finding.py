"""The answer of the accuracy study in sentences: which method keeps accuracy at which ratio.

Source: section 4.3 of "Does compressing activations help model parallel training?": a method preserves accuracy that
loses at most 3 points, except on CoLA and RTE.
Simplified: bytes are a mean over tasks.
Left out: what is not compressed: the other layers, and reductions backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from .deciding import MOST_TOLERATED
from .scores import BASELINE, CLOSE_POINTS, PER_CENT

__all__ = ["TOLD_PER_BYTE", "told_bytes", "told_per_byte"]

Rows = Sequence[Mapping[str, Any]]

TOLD_PER_BYTE = ("score", "chance", "points_lost", "relative_score", "message_share", "sent_share")
"""Quantities that the answer is computed from; a record that gives it holds them."""

EXCEPTED = ("cola", "rte")
"""Tasks that the paper excepts from its 3 points."""


def told_per_byte(rows: Iterable[Mapping[str, Any]], tasks: Collection[str], batch: int) -> str:
    """Say which methods preserve accuracy in every run, where the others do not, and what all keep on average.

    Three points are asked of tasks that the paper does not except and that have more than twice as much to lose.

    Args:
        rows: of `score_rows`.
        tasks: those that count.
        batch: of all runs, which the answer is about.

    Returns:
        Sentences, methods by the bytes that they send; empty where nothing was compressed.
    """
    counted = [row for row in rows if row.get("task") in tasks]
    shares, with_codes, kept = (_by_method(counted, name) for name in ("message_share", "sent_share", "relative_score"))
    methods = sorted(shares.keys() & kept.keys(), key=lambda method: (fmean(shares[method]), method))
    if not methods:
        return ""
    means = ", ".join(f"{method} ({_share(shares[method])}) {_share(kept[method])}" for method in methods)
    average = f"Kept of the score, on average over {_listed(sorted(tasks))}: {means}."
    bytes_of = {method: told_bytes(shares[method], with_codes[method]) for method in methods}
    return " ".join([*_told_lost(counted, bytes_of, batch), average, "(A: learned codes, T: Top-K, Q: quantised.)"])


def _told_lost(rows: Rows, bytes_of: Mapping[str, str], batch: int) -> list[str]:
    """Say which methods lose at most three points in every run of the tasks that this can be asked of."""
    lost = {(row["method"], row["task"], row["seed"]): row["value"] for row in rows if row["quantity"] == "points_lost"}
    tasks = {task for _, task, _ in lost}
    asked = sorted(task for task in tasks if _can_be_asked(rows, task))
    if not asked:
        return []
    seeds = sorted({seed for _, task, seed in lost if task in asked})
    beyond = {
        method: [
            task for task in asked if any(lost.get((method, task, seed), PER_CENT) > CLOSE_POINTS for seed in seeds)
        ]
        for method in bytes_of
    }
    kept = [f"{method} at {bytes_of[method]}" for method, where in beyond.items() if not where]
    others = [
        f"{method} ({_listed(where)})" if len(where) < len(asked) else method
        for method, where in beyond.items()
        if where
    ]
    runs = f"On {_listed(asked)} ({len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}, batches of {batch})"
    too_many = f"more than {CLOSE_POINTS:g} points"
    without = _not_asked(tasks - {*asked})
    if not kept:
        return [f"{runs} every method loses {too_many} in some run.", *without]
    rest = f"; some run does with {_listed(others)}" if others else ""
    answer = f"{runs} no run loses {too_many} with {_listed(kept)} of the bytes where they compress{rest}."
    return [answer, *without]


def _not_asked(tasks: Collection[str]) -> list[str]:
    """Say of which tasks three points are not asked, and why."""
    reasons = {"excepted by the paper": [], f"{CLOSE_POINTS:g} points are most of what there is to lose": []}
    for task in sorted(tasks):
        [*reasons.values()][task not in EXCEPTED].append(task)
    told = [f"{_listed(where)} ({why})" for why, where in reasons.items() if where]
    return [f"Not asked of {_listed(told)}."] if told else []


def _can_be_asked(rows: Rows, task: str) -> bool:
    """Say whether the paper asks three points of a task, and these are not most of what there is to lose."""
    plain = [row for row in rows if row["task"] == task and row["method"] == BASELINE]
    score, chance = (fmean(row["value"] for row in plain if row["quantity"] == name) for name in ("score", "chance"))
    return task not in EXCEPTED and MOST_TOLERATED * (score - chance) >= CLOSE_POINTS


def _by_method(rows: Rows, quantity: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["quantity"] == quantity:
            found.setdefault(row["method"], []).append(row["value"])
    return found


def told_bytes(shares: Sequence[float], with_codes: Sequence[float]) -> str:
    """Tell a share of the bytes, and that with the gradients of learned codes where they are to be seen in it.

    Args:
        shares: of the bytes without compression, one or more, of which the mean is told.
        with_codes: the same with the gradients of learned codes.
    """
    told, more = _share(shares), _share(with_codes)
    return told if told == more else f"{told} ({more} with gradients)"


def _share(values: Sequence[float]) -> str:
    return f"{PER_CENT * fmean(values):.0f}\u00a0%"  # never broken over two lines


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
