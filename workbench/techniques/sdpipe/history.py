"""Equations 4 and 5: the bound on the error by P, and a training whose groups the scheduler forms with this P."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.datasets import digits
from workbench.rows import spread_row, value_row

from .cost import Scheme, simulate
from .method import condition
from .simulated import DELAYS_S, ITERATION, PAPER, delays_s, workload_of

__all__ = ["error_bound", "history_rows"]

MODEL, SETTING, EXAMPLES = "ResNet-50", "B", 16  # the clock's model and delays, and images of a mini-batch


def error_bound(learning_rate: float, *, num_pipelines: int, num_stages: int, history: int, n1: int, n2: int) -> float:
    """Return the network error of Eq. 5 with L = σ = 1; see `condition`, which holds all of it but n1 and n2."""
    rate = n2 * learning_rate / num_pipelines
    sizes = {"num_pipelines": num_pipelines, "num_stages": num_stages, "history": history, "n1": n1, "n2": n2}
    return (rate + (condition(learning_rate, **sizes, smoothness=1.0) - rate) * n1) / n2


def history_rows(
    *, histories: Sequence[int], mesh: Sequence[int], num_iterations: int, learning_rate: float, seeds: int
) -> list[dict[str, Any]]:
    """Return by P the bound, the workers' squared distance from their mean, and the mean's squared gradient.

    Each worker trains a linear classifier of digits. Workers average as those of the first of M stages do.
    """
    num_stages, num_pipelines = mesh
    workload, shape = workload_of(MODEL, num_stages), (num_iterations, num_stages, num_pipelines)
    free_s = simulate(Scheme.SDPIPE, workload, PAPER, np.zeros(shape), flush=False).iteration_s
    rows = [value_row("delay_over_iteration", DELAYS_S[MODEL, SETTING] / free_s)]
    for history in histories:
        found = []
        for seed in range(seeds):
            delays = delays_s(MODEL, SETTING, shape, ITERATION, seed)
            run = simulate(Scheme.SDPIPE, workload, PAPER, delays, history=history, flush=False)
            groups = [sorted(group.members) for group in run.groups if group.stage == 0]
            found.append(_trained(groups, num_pipelines, learning_rate, seed))
        distances, gradients = zip(*found, strict=True)
        rows.append(spread_row("squared_distance", distances, P=history))
        rows.append(spread_row("squared_gradient", gradients, P=history))
        for smallest in (2, num_pipelines):
            sizes = {"num_pipelines": num_pipelines, "num_stages": num_stages, "n1": smallest, "n2": num_pipelines}
            rows.append(value_row("error_bound", error_bound(0.01, **sizes, history=history), P=history, n1=smallest))
    return rows


def _trained(groups: Sequence[Sequence[int]], num_workers: int, learning_rate: float, seed: int) -> tuple[float, float]:
    """Let each group's members do a mini-batch and average; return the means over the training."""
    loaded = digits.load(instead_of="theorem 1's problem", side_pixels=8, num_colours=1)
    images, wanted = loaded.images.reshape(len(loaded.labels), -1) / 255, np.eye(10)[loaded.labels]

    def gradient(weights: np.ndarray, rows: Any) -> np.ndarray:
        scores = np.exp(images[rows] @ weights)
        return images[rows].T @ (scores / scores.sum(axis=1, keepdims=True) - wanted[rows]) / len(scores)

    weights = np.zeros((num_workers, images.shape[1], 10))
    draws = [np.random.default_rng([seed, worker]) for worker in range(num_workers)]  # the same batches whatever P is
    found: list[tuple[float, float]] = []
    num_updates = 0
    for members in groups:
        for worker in members:
            rows = draws[worker].integers(len(images), size=EXAMPLES)
            weights[worker] -= learning_rate * gradient(weights[worker], rows)
        weights[members] = weights[members].mean(axis=0)
        num_updates += len(members)
        if num_updates // num_workers > len(found):
            mean = weights.mean(axis=0)
            apart = ((weights - mean) ** 2).sum() / num_workers
            found.append((apart, (gradient(mean, slice(None)) ** 2).sum()))
    distance, squared = np.mean(found, axis=0)
    return float(distance), float(squared)
