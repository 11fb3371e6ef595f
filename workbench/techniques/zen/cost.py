"""What a scheme takes in theory: the busiest rank's bytes, by density, overlap and skewness (sections 3.2.4, 3.2.5).

Values and indices have 4 bytes. An entry is a row of an embedding, or a single value. The paper sends an index with
each value; our ranks send one with each row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log2

import numpy as np
import torch

from workbench.checks import require_counts, require_one_of, require_positive
from workbench.cluster import Link
from workbench.datasets import embedding_usage
from workbench.study.embedding_tasks import EmbeddingTask

from .method.formats import BLOCK_ELEMENTS, nonzero_blocks
from .method.hashing import partition_of
from .method.sparsity import imbalance_ratio, range_counts, union_of

__all__ = ["BATCH_WORDS", "SAMPLED_ROWS", "SCHEMES", "Sparsity", "broadcast_over_balanced"]
__all__ += ["bytes_on_busiest_link", "lower_bound_bytes", "lstm_sets", "seconds", "sparsity_of", "task_sets"]

VALUE_BYTES = INDEX_BYTES = 4
BITS = 8
SEED = 0
SAMPLED_ROWS, BATCH_WORDS = 8192, 2560  # of the paper's LSTM: rows of its softmax, words of a batch


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """The non-zero entries of some ranks' gradients, before and after their sum."""

    domain_size: int  # entries, |G|
    entry_elements: int  # values of an entry
    num_indices: int  # that COO sends for an entry: 1, or as in the paper one for each value
    num_ranks: int  # n
    density: Mapping[int, float]  # by number of ranks 1, 2, 4, ..., n and n - 1: d^m, of their sum
    push: Mapping[str, float]  # of the entries that servers receive, most over mean: in "ranges", and "hashed"
    pull: Mapping[str, float]  # the same, of the sum's entries, which they send
    value_bytes: int = VALUE_BYTES
    blocks: tuple[float, float]  # share of elements in non-zero blocks of the fullest range, of a rank's and the sum's

    @property
    def tensor_bytes(self) -> int:
        """M."""
        return self.value_bytes * self.domain_size * self.entry_elements

    @property
    def coo(self) -> float:
        """Bytes in COO over bytes of the values: 2 with an index for each value."""
        return 1 + INDEX_BYTES * self.num_indices / (self.value_bytes * self.entry_elements)


def sparsity_of(
    sets: Sequence[np.ndarray],
    domain_size: int,
    entry_elements: int,
    *,
    num_indices: int = 1,
    seed: int = SEED,
    value_bytes: int = VALUE_BYTES,
) -> Sparsity:
    """Measure index sets of n ranks.

    Args:
        sets: of each rank, its distinct entries below `domain_size`.
        domain_size: entries.
        entry_elements: values of an entry.
        num_indices: that are sent for an entry: with more than 1, values are hashed one by one.
        seed: of h0.
    """
    require_counts(2, num_ranks=len(sets))
    require_counts(1, domain_size=domain_size, entry_elements=entry_elements)
    num, mean, total = len(sets), np.mean([len(indices) for indices in sets]) / domain_size, union_of(sets)
    density = {1: float(mean), num - 1: _mean_density(sets, num - 1, domain_size)}
    density |= {2**step: _mean_density(sets, 2**step, domain_size) for step in range(1, int(log2(num)) + 1)}
    density[num] = len(total) / domain_size

    def hashed(indices: np.ndarray) -> np.ndarray:
        homes = partition_of(torch.from_numpy(indices.astype(np.int64)), num, seed)
        return np.bincount(homes.numpy(), minlength=num)

    def ranges(indices: np.ndarray) -> np.ndarray:
        return range_counts(indices, domain_size, num)

    kinds = {"ranges": ranges} | ({} if num_indices > 1 else {"hashed": hashed})
    even = {"hashed": 1.0}  # what hashing leaves of so many values, to a per cent
    return Sparsity(
        domain_size=domain_size,
        entry_elements=entry_elements,
        num_indices=num_indices,
        value_bytes=value_bytes,
        num_ranks=num,
        density=density,
        push=even | {name: imbalance_ratio(np.sum(list(map(counts, sets)), axis=0)) for name, counts in kinds.items()},
        pull=even | {name: imbalance_ratio(counts(total)) for name, counts in kinds.items()},
        blocks=_blocks(sets, total, domain_size, entry_elements),
    )


def _mean_density(sets: Sequence[np.ndarray], num: int, domain_size: int) -> float:
    """Return the density of sums of consecutive ranks' gradients, of as many as fit side by side."""
    groups = [sets[first : first + num] for first in range(0, len(sets) - num + 1, num)]
    return float(np.mean([len(union_of(group)) for group in groups])) / domain_size


def _blocks(
    sets: Sequence[np.ndarray], total: np.ndarray, domain_size: int, entry_elements: int
) -> tuple[float, float]:
    rows = max(1, BLOCK_ELEMENTS // entry_elements)
    num_blocks = -(-domain_size // rows)

    def shares(indices: np.ndarray) -> np.ndarray:
        blocks = nonzero_blocks(torch.from_numpy(indices.astype(np.int64)), rows).numpy()
        return range_counts(blocks, num_blocks, len(sets)) * len(sets) / num_blocks

    pushed = np.mean([shares(indices) for indices in sets], axis=0)  # the busiest server's, not each rank's busiest
    return float(pushed.max()), float(shares(total).max())


def bytes_on_busiest_link(scheme: str, sparsity: Sparsity) -> float:
    """Return the bytes that the busiest rank sends or receives, one stage after the other.

    Source: sections 3.2.4 and 3.2.5; SparCML sends the whole tensor once that is shorter.
    """
    require_one_of(SCHEMES, scheme=scheme)
    return SCHEMES[scheme](sparsity)


def _push_pull(push: float, pull: float, of: Sparsity) -> float:
    """Return what a server receives and then sends, given shares of the tensor if all partitions were as full."""
    return (of.num_ranks - 1) / of.num_ranks * (push + pull) * of.tensor_bytes


def _sparcml(of: Sparsity) -> float:
    if of.num_ranks & (of.num_ranks - 1):
        raise ValueError(f"num_ranks is {of.num_ranks}; SparCML needs a power of two")
    stages = range(int(log2(of.num_ranks)))
    return sum(min(1.0, of.coo * of.density[2**stage]) for stage in stages) * of.tensor_bytes


def _pushed(of: Sparsity, kind: str) -> float:
    return of.coo * of.push[kind] * of.density[1]


def _in_coo(of: Sparsity, kind: str) -> float:
    return _push_pull(_pushed(of, kind), of.coo * of.pull[kind] * of.density[of.num_ranks], of)


def _omni_reduce(of: Sparsity) -> float:
    with_number = 1 + INDEX_BYTES / (of.value_bytes * BLOCK_ELEMENTS)
    pushed, summed = of.blocks
    return _push_pull(with_number * pushed, with_number * summed, of)


def _zen(of: Sparsity) -> float:
    density = of.pull["hashed"] * of.density[of.num_ranks]
    written = of.num_indices * min(1 / BITS, INDEX_BYTES * density) / (of.value_bytes * of.entry_elements)
    return _push_pull(_pushed(of, "hashed"), density + written, of)


SCHEMES: Mapping[str, Callable[[Sparsity], float]] = {
    "Dense": lambda of: _push_pull(1, 1, of),
    "AGsparse": lambda of: (of.num_ranks - 1) * of.coo * of.density[1] * of.tensor_bytes,
    "SparCML": _sparcml,
    "Sparse PS": lambda of: _in_coo(of, "ranges"),
    "OmniReduce": _omni_reduce,
    "Balanced Parallelism": lambda of: _push_pull(of.coo * of.density[1], of.coo * of.density[of.num_ranks], of),
    "Zen, COO": lambda of: _in_coo(of, "hashed"),
    "Zen": _zen,
}
"""By name; Balanced Parallelism is Zen with COO and partitions that are exactly even."""


def lower_bound_bytes(of: Sparsity) -> float:
    """Return the least that a rank must receive: the others' sum, without indices (section 3.4.1)."""
    return of.density[of.num_ranks - 1] * of.tensor_bytes


def broadcast_over_balanced(skewness: float, densification: float, num_rounds: float, num_ranks: int) -> float:
    """Return the time of Sparse PS with a broadcast over that of Balanced Parallelism, as the proof of lemma 3.4."""
    pulled = num_ranks / (num_ranks - 1) * num_rounds * densification
    return (skewness + pulled) / (1 + densification)


def num_messages(scheme: str, num_ranks: int) -> int:
    """Return how many messages follow each other; those to several ranks leave at once."""
    by_scheme = {"Dense": 2 * (num_ranks - 1), "AGsparse": 1, "SparCML": int(log2(num_ranks))}
    return by_scheme.get(scheme, 2)


def seconds(scheme: str, sparsity: Sparsity, link: Link) -> float:
    """Return the time of a scheme over links of one kind, without computation."""
    require_positive(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s)
    sent_s = bytes_on_busiest_link(scheme, sparsity) / link.bandwidth_bytes_per_s
    return sent_s + num_messages(scheme, sparsity.num_ranks) * link.latency_s


# --- which rows the ranks' batches touch: those of the paper's LSTM, and of smaller models on real data


@cache
def lstm_sets(num_ranks: int, seed: int = 0) -> tuple[tuple[np.ndarray, ...], int]:
    """Draw the rows of both tables, input and softmax, that batches of the paper's LSTM touch, and count all rows.

    The input's are real batches where there are so many, then words drawn by their frequency; the softmax's are those
    of the same batch, its targets, and the sampler's, which draws until as many rows are distinct, log-uniformly over
    the ranks of frequency.
    """
    counts, real = embedding_usage.lm1b_word_counts(), embedding_usage.lm1b_batches()
    draw, num_words, chances = np.random.default_rng(seed), len(counts), counts / counts.sum()
    words = np.arange(num_words)
    sampler = np.log((words + 2) / (words + 1)) / np.log(num_words + 1)  # chance of each word to be drawn at once
    sets: list[np.ndarray] = []
    for rank in range(num_ranks):
        inputs = real[rank] if rank < len(real) else np.unique(draw.choice(num_words, BATCH_WORDS, p=chances))
        drawn_at = draw.exponential(size=num_words) / sampler
        sampled = np.argpartition(drawn_at, SAMPLED_ROWS)[:SAMPLED_ROWS]
        sets.append(np.concatenate([inputs, num_words + np.union1d(sampled, inputs)]))
    return tuple(sets), 2 * num_words


def task_sets(task: EmbeddingTask, num_ranks: int, step: int = 0) -> list[tuple[list[np.ndarray], int]]:
    """Return, of each table, the rows that the ranks' batches touch and how many rows it has.

    Tables of another width than the first are left out.
    """
    weights = dict(task.module.named_parameters())
    (first, *_) = task.embeddings
    chosen = [name for name in task.embeddings if weights[name].shape[1:] == weights[first].shape[1:]]
    touched = [task.touched(rank, step) for rank in range(num_ranks)]
    return [([by_table[name] for by_table in touched], task.embeddings[name]) for name in chosen]
