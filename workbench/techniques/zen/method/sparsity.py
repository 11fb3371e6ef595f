"""What describes sparse gradients of several ranks: overlap, densification, skewness, imbalance (3.1 to 3.6).

Index sets are int arrays [I] of distinct indices of non-zero gradients, one of each rank.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ["densification_ratio", "imbalance_ratio", "overlap_ratio"]
__all__ += ["push_imbalance", "range_counts", "skewness_ratio", "union_of"]


def union_of(sets: Sequence[np.ndarray]) -> np.ndarray:
    """Return the indices that are in any of the sets, ascending."""
    return np.unique(np.concatenate(list(sets)))


def overlap_ratio(first: np.ndarray, second: np.ndarray) -> float:
    """Return what two sets share, over the smaller one (definition 3.3)."""
    return len(np.intersect1d(first, second, assume_unique=True)) / min(len(first), len(second))


def densification_ratio(sets: Sequence[np.ndarray]) -> float:
    """Return the density of the sum over the mean density of the parts (definition 3.4)."""
    return len(union_of(sets)) / float(np.mean([len(indices) for indices in sets]))


def range_counts(indices: np.ndarray, domain_size: int, num_partitions: int) -> np.ndarray:
    """Return how many indices lie in each of n even ranges of the gradient, int64 [n]."""
    return np.bincount(indices * num_partitions // domain_size, minlength=num_partitions)


def skewness_ratio(indices: np.ndarray, domain_size: int, num_partitions: int) -> float:
    """Return the density of the fullest of n even ranges over that of the whole (definition 3.5)."""
    return imbalance_ratio(range_counts(indices, domain_size, num_partitions))


def imbalance_ratio(counts: np.ndarray) -> float:
    """Return the fullest partition's count over the mean (definition 3.6); 1 for no indices at all."""
    return float(counts.max() / counts.mean()) if counts.any() else 1.0


def push_imbalance(sets: Sequence[np.ndarray], home: np.ndarray, num_partitions: int) -> float:
    """Return the imbalance of the rank whose fullest partition is fullest (definition 3.6), by each index's home."""
    return max(imbalance_ratio(np.bincount(home[indices], minlength=num_partitions)) for indices in sets)
