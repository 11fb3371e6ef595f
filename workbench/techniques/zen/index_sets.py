"""Rows of the embedding tables that the ranks' batches touch: the paper's LSTM, and smaller models on real data."""

from functools import cache

import numpy as np

from workbench.datasets import embedding_usage
from workbench.training.embedding_tasks import EmbeddingTask

__all__ = ["BATCH_WORDS", "SAMPLED_ROWS", "lstm_sets", "task_sets"]


SAMPLED_ROWS, BATCH_WORDS = 8192, 2560  # of the paper's LSTM: rows of its softmax, words of a batch


@cache
def _sampler() -> np.ndarray:
    """Return the chance of each word to be drawn at once by the LSTM's sampler: log-uniform over frequency ranks."""
    ranks = np.arange(len(embedding_usage.lm1b_word_counts()))
    return np.log((ranks + 2) / (ranks + 1)) / np.log(len(ranks) + 1)


@cache
def lstm_sets(num_ranks: int, seed: int = 0) -> tuple[tuple[np.ndarray, ...], int]:
    """Draw the rows of both tables, input and softmax, that batches of the paper's LSTM touch, and count all rows.

    The input's are real batches where there are so many, then words drawn by their frequency; the softmax's are those
    of the same batch, its targets, and the sampler's.
    """
    counts, real = embedding_usage.lm1b_word_counts(), embedding_usage.lm1b_batches()
    draw, num_words, chances = np.random.default_rng(seed), len(counts), counts / counts.sum()

    def words(rank: int) -> np.ndarray:
        return real[rank] if rank < len(real) else np.unique(draw.choice(num_words, BATCH_WORDS, p=chances))

    found = []
    for rank in range(num_ranks):
        inputs = words(rank)
        sampled = _distinct(draw, SAMPLED_ROWS)
        found.append(np.concatenate([inputs, num_words + np.union1d(sampled, inputs)]))
    return tuple(found), 2 * num_words


def _distinct(draw: np.random.Generator, num: int) -> np.ndarray:
    """Draw until so many rows are distinct, as the LSTM's sampler does."""
    order = draw.exponential(size=len(_sampler())) / _sampler()
    return np.sort(np.argpartition(order, num)[:num])


def task_sets(task: EmbeddingTask, num_ranks: int, step: int = 0) -> list[tuple[list[np.ndarray], int]]:
    """Return, of each table, the rows that the ranks' batches touch and how many rows it has.

    Tables of another width than the first are left out.
    """
    weights = dict(task.module.named_parameters())
    (first, *_) = task.embeddings
    chosen = [name for name in task.embeddings if weights[name].shape[1:] == weights[first].shape[1:]]
    touched = [task.touched(rank, step) for rank in range(num_ranks)]
    return [([one[name] for one in touched], task.embeddings[name]) for name in chosen]
