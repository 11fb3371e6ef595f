"""Rows of the embedding tables that the ranks' batches touch: the paper's LSTM, and smaller models on real data."""

from functools import cache

import numpy as np

from workbench.datasets import embedding_usage
from workbench.study.embedding_tasks import EmbeddingTask

__all__ = ["BATCH_WORDS", "SAMPLED_ROWS", "lstm_sets", "task_sets"]


SAMPLED_ROWS, BATCH_WORDS = 8192, 2560  # of the paper's LSTM: rows of its softmax, words of a batch


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
    found = []
    for rank in range(num_ranks):
        inputs = real[rank] if rank < len(real) else np.unique(draw.choice(num_words, BATCH_WORDS, p=chances))
        drawn_at = draw.exponential(size=num_words) / sampler
        sampled = np.argpartition(drawn_at, SAMPLED_ROWS)[:SAMPLED_ROWS]
        found.append(np.concatenate([inputs, num_words + np.union1d(sampled, inputs)]))
    return tuple(found), 2 * num_words


def task_sets(task: EmbeddingTask, num_ranks: int, step: int = 0) -> list[tuple[list[np.ndarray], int]]:
    """Return, of each table, the rows that the ranks' batches touch and how many rows it has.

    Tables of another width than the first are left out.
    """
    weights = dict(task.module.named_parameters())
    (first, *_) = task.embeddings
    chosen = [name for name in task.embeddings if weights[name].shape[1:] == weights[first].shape[1:]]
    touched = [task.touched(rank, step) for rank in range(num_ranks)]
    return [([one[name] for one in touched], task.embeddings[name]) for name in chosen]
