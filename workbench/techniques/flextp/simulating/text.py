"""The figures of the abstract and the text: efficiency with and without stragglers, and the ratio a saving asks for.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections I (18.5 % and 77.6 %)
and V-B (23.5 % shorter epochs). Whether efficiency is time saved or throughput gained the text does not say: both are
here.
Simplified, left out: see `epochs`; of the 23.5 % the half about time alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .epochs import SOLUTIONS, Rows, model_named

__all__ = ["MEANINGS", "efficiency_rows", "ratio_needed", "simulate_text"]

MEANINGS = ("time saved", "throughput gained")
BISECTIONS = 40  # of [0, 1): to 1e-12
CLAIMED = (18.5, 23.5)  # %, of epochs without stragglers


def simulate_text(models: Sequence[str], ratios: Sequence[float], skewness: float, solutions: Sequence[str]) -> Rows:
    """Return the efficiency gained, and the ratios that the text's gains ask for; arguments as for `efficiency_rows`.

    Returns:
        Its rows, and ratio_needed, keys claimed (% without stragglers), model, meaning.
    """
    rows = efficiency_rows(models, ratios, skewness, solutions)
    for claimed in CLAIMED:
        for model in models:
            for meaning in MEANINGS:
                keys = {"claimed": claimed, "model": model, "meaning": meaning}
                needed = ratio_needed(model, claimed, meaning)
                rows.append({"quantity": "ratio_needed", **keys, "value": needed, "unit": "1"})
    return rows


def efficiency_rows(models: Sequence[str], ratios: Sequence[float], skewness: float, solutions: Sequence[str]) -> Rows:
    """Return the efficiency gained over Baseline, by both meanings of the word.

    Args:
        models: "ViT-1B", "ViT-3B".
        ratios: γ of all ranks, in homogeneous environments.
        skewness: of one straggler, in heterogeneous ones.
        solutions: names of `SOLUTIONS`, for those.

    Returns:
        Rows: efficiency_gain in %, keys environment, model, meaning, and pruning_ratio or solution.
    """
    rows: Rows = []
    for model in models:
        workload, slow = model_named(model), {0: skewness}
        plain_s, slowed_s = (SOLUTIONS["Baseline"].epoch(each, workload).time_s for each in ({}, slow))
        for ratio in ratios:
            keys = {"environment": "homogeneous", "model": model, "pruning_ratio": ratio}
            rows += _gain_rows(plain_s, SOLUTIONS["ZERO-Pri"].epoch({}, workload, ratio).time_s, keys)
        for name in solutions:
            keys = {"environment": "heterogeneous", "model": model, "solution": name}
            rows += _gain_rows(slowed_s, SOLUTIONS[name].epoch(slow, workload).time_s, keys)
    return rows


def ratio_needed(model: str, percent: float, meaning: str) -> float:
    """Return the ratio that all ranks must drop for an efficiency, in homogeneous environments.

    Args:
        model: "ViT-1B" or "ViT-3B".
        percent: the efficiency.
        meaning: "time saved" or "throughput gained".

    Returns:
        The ratio; 1 where even dropping everything does not give it.

    Raises:
        ValueError: for another meaning.
    """
    if meaning not in MEANINGS:
        raise ValueError(f"meaning is {meaning!r}; it must be one of {MEANINGS!r}")
    workload = model_named(model)
    plain_s = SOLUTIONS["Baseline"].epoch({}, workload).time_s
    allowed_s = plain_s * (1 - percent / 100) if meaning == MEANINGS[0] else plain_s / (1 + percent / 100)
    least, most = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (least + most) / 2
        is_enough = SOLUTIONS["ZERO-Pri"].epoch({}, workload, middle).time_s <= allowed_s
        least, most = (least, middle) if is_enough else (middle, most)
    return 1.0 if math.isclose(most, 1.0) else most


def _gain_rows(before_s: float, after_s: float, keys: dict[str, object]) -> Rows:
    gains = dict(zip(MEANINGS, (100 * (1 - after_s / before_s), 100 * (before_s / after_s - 1)), strict=True))
    return [
        {"quantity": "efficiency_gain", **keys, "meaning": meaning, "value": gain, "unit": "%"}
        for meaning, gain in gains.items()
    ]
