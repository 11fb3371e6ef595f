"""The strawman that looks at the data (section 3.3.2), and Sparse PS with a broadcast (lemma 3.4)."""

from math import ceil, log2
from typing import Any

import numpy as np

from workbench.rows import value_row
from workbench.study.embedding_tasks import EmbeddingTask

from .index_sets import task_sets
from .method.sparsity import densification_ratio, push_imbalance, skewness_ratio, union_of

__all__ = ["broadcast_over_balanced", "threshold_homes", "threshold_rows"]


def threshold_rows(*, task: str, batch: int, num_ranks: int, steps: int) -> list[dict[str, Any]]:
    """Return the imbalance of the push in later steps, where thresholds cut the first step's rows into even parts.

    The text sorts the index set I, which is that of all ranks; one rank's own is beside it. Parts are of the first
    table, the density is of all.
    """
    trained = EmbeddingTask(task, batch=batch, seed=0)
    tables = task_sets(trained, num_ranks)
    sets, num_rows = tables[0]
    later = [task_sets(trained, num_ranks, step)[0][0] for step in range(1, steps + 1)]
    touched = sum(len(one) for of_table, _ in tables for one in of_table) / num_ranks
    rows = [value_row("density", touched / sum(num for _, num in tables))]
    for of, known in (("all ranks", union_of(sets)), ("one rank", sets[0])):
        home = threshold_homes(known, num_rows, num_ranks)
        found = [push_imbalance(one, home, num_ranks) for one in later]
        rows += [value_row("imbalance", pick(found), of=of, step=pick.__name__) for pick in (min, max)]
        rows.append(value_row("fluctuation", max(found) / min(found), of=of))
    skewness = float(np.mean([skewness_ratio(one, num_rows, num_ranks) for one in sets]))
    for algorithm, rounds in (
        ("binomial tree", ceil(log2(num_ranks))),
        ("scatter and all-gather", 2 * (num_ranks - 1) / num_ranks),
    ):
        ratio = broadcast_over_balanced(skewness, densification_ratio(sets), rounds, num_ranks)
        rows.append(value_row("broadcast_over_balanced", ratio, algorithm=algorithm))
    return rows


def threshold_homes(known: np.ndarray, num_rows: int, num_parts: int) -> np.ndarray:
    """Return the part of every row, int64 [rows], by thresholds that cut known rows, ascending, into even parts."""
    bounds = known[np.arange(1, num_parts) * len(known) // num_parts]
    return np.searchsorted(bounds, np.arange(num_rows), side="right")


def broadcast_over_balanced(skewness: float, densification: float, num_rounds: float, num_ranks: int) -> float:
    """Return the time of Sparse PS with a broadcast over that of Balanced Parallelism, as the proof of lemma 3.4."""
    pulled = num_ranks / (num_ranks - 1) * num_rounds * densification
    return (skewness + pulled) / (1 + densification)
