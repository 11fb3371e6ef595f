"""The synchronisation matrix (Eq. 2), the learning rates that theorem 1 admits (Eq. 3), and its bound (Eq. 5)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from workbench.checks import require_counts, require_positive

if TYPE_CHECKING:
    import numpy as np

__all__ = ["condition", "error_bound", "largest_learning_rate", "synchronization_matrix"]


def synchronization_matrix(num_workers: int, members: Collection[int]) -> np.ndarray:
    """Return W of Eq. 2 [N, N]: members take the mean of the group, all others keep their model.

    Source: Eq. 2; X W averages models that are columns of X.
    """
    import numpy as np  # the scheduler's process, which imports this package, starts twice as fast without

    matrix, chosen = np.eye(num_workers), sorted(members)
    matrix[np.ix_(chosen, chosen)] = 1 / len(chosen)
    return matrix


def condition(
    learning_rate: float, *, num_pipelines: int, num_stages: int, history: int, n1: int, n2: int, smoothness: float
) -> float:
    """Return the left side of Eq. 3, which must be at most 1; infinite or not a number where its terms are.

    Args:
        learning_rate: γ.
        num_pipelines, num_stages: N, M.
        history: P.
        n1, n2: bounds of a group's size, in 1..N. The text orders them n1 <= |S| <= n2 and calls n1 the largest and
            n2 the smallest size, so that either may be the smaller.
        smoothness: L, the Lipschitz constant of the gradient.
    """
    require_counts(1, num_stages=num_stages, history=history, n1=n1, n2=n2)
    require_counts(2, num_pipelines=num_pipelines)
    require_positive(learning_rate=learning_rate, smoothness=smoothness)
    if max(n1, n2) > num_pipelines:
        raise ValueError(f"n1, n2 are {n1}, {n2}; they must be at most num_pipelines, {num_pipelines}")
    rate = n2 * learning_rate / num_pipelines
    return rate * smoothness + (rate * smoothness) ** 2 * _network_error(num_pipelines, num_stages, history, n1, n2)


def largest_learning_rate(
    *, num_pipelines: int, num_stages: int, history: int, n1: int, n2: int, smoothness: float, mixes: bool = False
) -> float:
    """Return the largest γ that Eq. 3 admits; 0 where it admits none. See `condition`.

    With `mixes` t2 is 0 in place of its bound: models are equal after one group, as after one of all workers.
    """
    sizes = {"num_pipelines": num_pipelines, "num_stages": num_stages, "history": history, "n1": n1, "n2": n2}
    condition(1.0, **sizes, smoothness=smoothness)
    error = _network_error(num_pipelines, num_stages, history, n1, n2, mixes)
    if not math.isfinite(error):
        return 0.0
    # x + error x^2 = 1 with x = ηL
    return 2 / (1 + math.sqrt(1 + 4 * error)) / smoothness * num_pipelines / n2


def error_bound(learning_rate: float, *, num_pipelines: int, num_stages: int, history: int, n1: int, n2: int) -> float:
    """Return the network error of Eq. 5 with L = σ = 1; see `condition`, which holds all of it but n1 and n2."""
    rate = n2 * learning_rate / num_pipelines
    sizes = {"num_pipelines": num_pipelines, "num_stages": num_stages, "history": history, "n1": n1, "n2": n2}
    return (rate + (condition(learning_rate, **sizes, smoothness=1.0) - rate) * n1) / n2


def _network_error(num_pipelines: int, num_stages: int, history: int, n1: int, n2: int, mixes: bool = False) -> float:
    """Return the factor of (ηL)^2 in Eq. 3, in logarithms where its powers leave the range of a float."""
    exponent = num_pipelines * history
    shrink = n1**-exponent if exponent * math.log(n1) < 700 else 0.0  # n1^(-NP)
    if shrink == 1.0:
        return math.inf  # n1 = 1: t1 has a division by 0
    t1 = 4 * num_pipelines * ((shrink + 1) / (shrink - 1)) ** 2  # both sides of its fraction by n1^(NP)
    gap = 1.0 if mixes else -math.expm1(2 / exponent * math.log1p(-shrink))  # 1 - t2
    if gap == 0.0:
        return math.inf
    root_gap = gap / (1 + math.sqrt(1 - gap))  # 1 - sqrt(t2)
    return 2 * num_stages * num_pipelines**3 / n2**2 * t1 * (1 / gap + 2 / root_gap**2)
